"""Generate with drafts: one text, a list, a chat, a stream, and what drafts gained.

Runs on the model that ships with the package, or on any GGUF file:
`python examples/generate.py [MODEL.gguf]`
"""

from __future__ import annotations

import sys

from ngramspec import LLM

CODE = "def area(width, height):\n    return width * height\n"


def main() -> None:
    """Generate in each way."""
    model = sys.argv[1] if len(sys.argv) > 1 else None
    with LLM(model, "suffix", slots=2, context_size=1024) as llm:
        one = llm.generate("import os", max_tokens=8, temperature=0)
        print(repr(one.text), one.finish_reason)

        # A list shares batches, and requests draft from one another's text.
        for answer in llm.generate([CODE, CODE.replace("area", "size")], max_tokens=16, seed=1):
            print(answer.num_tokens, "tokens,", sum(answer.accepted), "of them guessed")

        message = {"role": "user", "content": f"Repeat this code:\n\n```python\n{CODE}```"}
        fast = llm.chat([message], max_tokens=64, temperature=0)
        plain = llm.chat([message], max_tokens=64, temperature=0, speculation=False)
        print("equal:", fast.text == plain.text, "tokens per pass:", fast.mean_accepted_length)

        for chunk in llm.stream([message], max_tokens=64, temperature=0):
            print(chunk.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
