"""The server's log: its level and where it goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# llama.cpp's thresholds of verbosity: 0 and 1 errors, 2 warnings, 3 information, more: all.
LEVELS = ("error", "error", "warning", "info")


def start_log(options: Mapping[str, Any]) -> None:
    """Send the log to stderr, and to --log-file if that is given.

    Raises:
        OSError: The file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if options["log_file"] is not None:
        handlers.append(logging.FileHandler(options["log_file"], encoding="utf-8"))
    level = level_of(options)
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=handlers)
    if not options["access_log"]:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def level_of(options: Mapping[str, Any]) -> str:
    """Return the level: --log-level, or what llama.cpp's options ask for."""
    if options["log_level"] is not None:
        return str(options["log_level"])
    if options["log_disable"]:
        return "error"
    if options["verbose"]:
        return "debug"
    verbosity = max(0, options["verbosity"])
    return LEVELS[verbosity] if verbosity < len(LEVELS) else "debug"
