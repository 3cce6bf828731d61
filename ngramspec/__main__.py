"""`python -m ngramspec` is the ngramspec command."""

from ngramspec.cli import main

if __name__ == "__main__":
    main(prog_name="ngramspec")
