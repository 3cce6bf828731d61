"""Variables of the environment: which ones are read, and a warning for those that nothing reads."""

from __future__ import annotations

import difflib
import logging
import multiprocessing
import os
from collections.abc import Mapping

PREFIX = "NGRAMSPEC_"
# What adapters read, without PREFIX: options, and what switches plugins on.
READ = (
    *("DRAFTER", "POLICY", "NAMESPACES", "LOG_SECONDS", "THREADS", "STATIC", "DYNAMIC", "POOL"),
    *("TOKENIZER", "ANY_TOKENIZER", "PARAMS"),
    *("VLLM", "SGLANG", "ARCTIC"),
)
# Of the container, of builds, tests and benchmarks, and keys as the pages on clients name them.
OF_OTHERS = (
    *("HEALTH_URL", "BASELINE", "DEBUG", "SANITIZE", "COMMIT", "FAULTS", "MAX_EXAMPLES"),
    *("SOAK_SECONDS", "SLOW_PAGES", "API_KEY", "KEY"),
)
_warned: set[str] = set()  # names that this process has warned of


def warn_of_unknown(log: logging.Logger, environment: Mapping[str, str] | None = None) -> None:
    """Warn of each variable that begins as ours and that nothing reads; name the nearest one.

    Hosts load a plugin in each of their processes. Those that another one has started are silent,
    as they have its environment, and a process warns of a name once.

    Args:
        log: The host's.
        environment: None = this process's.
    """
    if multiprocessing.parent_process() is not None:
        return
    for name in sorted(os.environ if environment is None else environment):
        own = name.removeprefix(PREFIX)
        if own == name or own in (*READ, *OF_OTHERS) or name in _warned:
            continue
        _warned.add(name)
        # Without PREFIX, which would make any two of them near.
        close = difflib.get_close_matches(own, READ, n=1)
        listing = f"after {PREFIX} come {', '.join(READ)}"
        hint = f"did you mean {PREFIX}{close[0]}?" if close else listing
        log.warning("ngramspec: nothing reads the variable %s; %s", name, hint)
