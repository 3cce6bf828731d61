"""Slow, obvious Python twins of the native drafters, written from the rules and not from the core.

Plain lists and dicts, every answer searched for anew: a rule can be read off the code, and the
native results are compared with it step by step. Nothing here imports the package under test.
"""

from .cache import CacheSource, NgramCache
from .chain import ReferenceDrafter, reference_drafter
from .map import MapSource
from .mod import HashPool, ModSource
from .recycle import RecycleSource, SuccessorPool
from .simple import SimpleSource
from .source import InputError, Source, StateError
from .suffix_index import SuffixIndex
from .suffix_pool import SuffixPool
from .suffix_tree import TreeSource

__all__ = [
    "CacheSource",
    "HashPool",
    "InputError",
    "MapSource",
    "ModSource",
    "NgramCache",
    "RecycleSource",
    "ReferenceDrafter",
    "SimpleSource",
    "Source",
    "StateError",
    "SuccessorPool",
    "SuffixIndex",
    "SuffixPool",
    "TreeSource",
    "reference_drafter",
]
