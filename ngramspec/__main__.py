"""`python -m ngramspec` is the ngramspec command."""

from ngramspec.cli import main

main(prog_name="ngramspec")
