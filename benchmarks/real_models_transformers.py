"""transformers' generate behind the two routes that real_models.py asks, one request at a time."""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList


class Clock(StoppingCriteria):
    """Notes when the first tokens were there, and stops nothing."""

    def __init__(self) -> None:
        self.first = 0.0

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Return that no row is done."""
        self.first = self.first or time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Model:
    """A model of a GGUF file. lookup: tokens that prompt lookup drafts, None = no drafts."""

    def __init__(self, path: Path, lookup: int | None) -> None:
        where: dict[str, Any] = {"gguf_file": path.name}
        self._tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
        self._model = AutoModelForCausalLM.from_pretrained(path.parent, **where).eval()
        self._drafts = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as llama-server's last event has it."""
        render = self._tokenizer.apply_chat_template
        prompt = render(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        temperature, clock = body["temperature"], Clock()
        torch.manual_seed(body["seed"])
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
        with torch.inference_mode():
            output = self._model.generate(
                **prompt,
                max_new_tokens=body["max_tokens"],
                stopping_criteria=StoppingCriteriaList([clock]),
                **({"do_sample": False} | sampling),
                **self._drafts,
            )
        ended = time.perf_counter()
        new = output[0, prompt["input_ids"].shape[1] :]
        text = self._tokenizer.decode(new, skip_special_tokens=True)
        timings = {"predicted_n": len(new), "predicted_ms": 1e3 * (ended - clock.first)}
        return {"choices": [{"delta": {"content": text}}], "timings": timings}


def handler(model: Model) -> type[BaseHTTPRequestHandler]:
    """Return what answers requests with a model."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(b"{}", "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            event = json.dumps(model.answer(body))
            self._send(f"data: {event}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prompt-lookup-num-tokens", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = Model(arguments.model, arguments.prompt_lookup_num_tokens)
    HTTPServer(("127.0.0.1", arguments.port), handler(model)).serve_forever()


if __name__ == "__main__":
    main()
