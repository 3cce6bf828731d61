"""How tokens are chosen, and what they must follow: a grammar, or a JSON schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ngramspec.cli.files import read_utf8
from ngramspec.cli.options import flag
from ngramspec.errors import InputError

NAMES = ("grammar", "grammar_file", "json_schema", "json_schema_file")


@dataclass
class SamplingOptions:
    """How tokens are chosen."""

    section = "Sampling"
    # fmt: off
    seed: int = flag("-s --seed", "-1: random.", default=-1, low=-1, high=2**32 - 1)
    top_k: int = flag("--top-k", "0: off.", env="TOP_K", default=40, low=0, clamp=True)
    top_p: float = flag("--top-p", "1: off.", env="TOP_P", default=0.95, low=0, high=1)
    min_p: float = flag("--min-p", "0: off.", env="MIN_P", default=0.05, low=0, high=1)
    repeat_penalty: float = flag(
        "--repeat-penalty", "1: off.", env="REPEAT_PENALTY", default=1.0, low=0, min_open=True)
    ignore_eos: bool = flag("--ignore-eos", "Continue past end tokens.", default=False)
    grammar: str | None = flag("--grammar", "Grammar that texts follow.", metavar="GBNF")
    grammar_file: Path | None = flag("--grammar-file", "File with a GBNF grammar.")
    json_schema: str | None = flag("-j --json-schema", "JSON schema of texts.", metavar="JSON")
    json_schema_file: Path | None = flag("-jf --json-schema-file", "File with a JSON schema.")
    # fmt: on

    def grammar_text(self) -> str:
        """Return the grammar that the options give, "" for none.

        Raises:
            InputError: More than one is given, or the schema is not valid.
            OSError: A file cannot be read.
        """
        from ngramspec.text.structured.guidance import schema_grammar

        texts = {name: value for name in NAMES if (value := getattr(self, name))}
        if len(texts) > 1:
            flags = " or ".join(f"--{name.replace('_', '-')}" for name in texts)
            raise InputError(f"give either {flags}")
        if not texts:
            return ""
        ((name, value),) = texts.items()
        text = read_utf8(value) if name.endswith("_file") else str(value)
        if name.startswith("grammar"):
            return text
        place = f"--json-schema-file {value}" if name.endswith("_file") else "--json-schema"
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} must be JSON: {error}") from None
        return schema_grammar(schema, place)
