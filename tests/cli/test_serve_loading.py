"""The line that tells what is being loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ngramspec.cli.serve.memory import loading_line


def test_a_model_is_named_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(3 << 20))
    assert loading_line(path) == "loading model.gguf (3.0 MiB) ..."
    assert loading_line(path, "qwen2.5-coder:7b") == "loading qwen2.5-coder:7b (3.0 MiB) ..."


def test_all_files_of_a_split_model_count(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(bytes(number << 10))
    line = loading_line(tmp_path / "m-00001-of-00003.gguf")
    assert line == "loading m-00001-of-00003.gguf (6.0 KiB) ..."
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(OSError, match="m-00003-of-00003"):
        loading_line(tmp_path / "m-00001-of-00003.gguf")


def test_a_name_cannot_write_lines_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b[31m.gguf"
    path.touch()
    assert loading_line(path) == "loading a\\x0ab\\x1b[31m.gguf (0 B) ..."
