"""Make the embedded model: tokenizer, training, GGUF file. Run again, it goes on where it was."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAME = "tiny-code-q8_0.gguf"


def run(tool: str, *arguments: object) -> None:
    """Run one of the tools beside this one; end with its exit code if it fails."""
    done = subprocess.run([sys.executable, str(HERE / tool), *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Run the steps that are still to be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("work"), help="for all files")
    parser.add_argument("--minutes", type=float, default=600.0, help="of training, all together")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--budget", type=int, default=3072, help="padded tokens in a batch")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, checkpoint = folder / "tokenizer.json", folder / "checkpoint.pt"
    if not tokenizer.exists():
        run("tokenizer.py", "--out", tokenizer)
    arguments = [
        "--tokenizer", tokenizer, "--out", checkpoint, "--minutes", options.minutes,
        "--threads", options.threads, "--device", options.device, "--budget", options.budget,
        *(["--compile"] if shutil.which("g++") else []),
    ]  # fmt: skip
    run("train.py", *arguments, *(["--resume"] if checkpoint.exists() else []))
    run("export.py", checkpoint, "--tokenizer", tokenizer, "--out", folder / NAME)


if __name__ == "__main__":
    main()
