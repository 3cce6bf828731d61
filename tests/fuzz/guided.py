"""The process that atheris guides: python guided.py TARGET KNOWN [libFuzzer's options].

KNOWN has a line per kind of failure that was found before and is passed over.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import atheris


def main() -> None:
    name, kinds = sys.argv[1], set(Path(sys.argv[2]).read_text().splitlines())
    # What guides the search must be known before anything is imported: it is read from the source.
    with atheris.instrument_imports(include=list(packages_of(name)), enable_loader_override=False):
        from fuzz.target import kind_of, load

        target = load(name)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        assert target.mutate is not None
        return target.mutate(data, most, seed, atheris.Mutate)

    with target.opened() as run:

        def one(data: bytes) -> None:
            try:
                run(data)
            except Exception as error:
                if kind_of(error) not in kinds:
                    raise

        options = [sys.argv[0], *sys.argv[3:]]
        own = {} if target.mutate is None else {"custom_mutator": mutate}
        atheris.Setup(options, one, internal_libfuzzer=True, **own)
        atheris.Fuzz()


def packages_of(name: str) -> tuple[str, ...]:
    """Return `instrumented` of a target without importing it."""
    import ast

    spec = importlib.util.find_spec(f"fuzz.targets.{name}")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.keyword) and node.arg == "instrumented":
            return tuple(ast.literal_eval(node.value))
    raise LookupError(name)


if __name__ == "__main__":
    main()
