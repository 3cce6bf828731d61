"""Building statistics files from a corpus, on one machine or many."""

from ngramspec.build.held_out import HeldOut
from ngramspec.build.local import build
from ngramspec.build.options import BuildOptions, Resources
from ngramspec.build.progress import NoProgress, Progress
from ngramspec.build.result import BuildResult

__all__ = [
    "BuildOptions",
    "BuildResult",
    "HeldOut",
    "NoProgress",
    "Progress",
    "Resources",
    "build",
]
