"""Building statistics files from a corpus, on one machine or many."""

from ngramspec.lab.builder.held_out import HeldOut
from ngramspec.lab.builder.local import build
from ngramspec.lab.builder.options import BuildOptions, Resources
from ngramspec.lab.builder.result import BuildResult, NoProgress, Progress

__all__ = [
    "BuildOptions",
    "BuildResult",
    "HeldOut",
    "NoProgress",
    "Progress",
    "Resources",
    "build",
]
