"""The keys of --api-key and --api-key-file: read at the start, and when the file has changed."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from ngramspec.cli.command import error_line
from ngramspec.cli.drafts import FILES
from ngramspec.cli.files import read_utf8
from ngramspec.cli.serve.options import AccessOptions, ServeOptions
from ngramspec.errors import InputError
from ngramspec.runtime import DraftSettings
from ngramspec.server import ServerSettings
from ngramspec.server.service import Service

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5  # between two looks at the file; a change is taken at the second look
STOP_SECONDS = 1.0  # for a look that has begun; its disk may hang
NEVER = ()  # how a file is that nobody has looked at
SHARED_FILES = ("pool_file", "lookup_dynamic", "recycle_file")  # written to


def keys_of(options: AccessOptions) -> tuple[str, ...]:
    """Return the keys that the options of `serve` give, none for a server that is open.

    Raises:
        InputError: An option holds no key, or the file is not UTF-8.
        OSError: The file cannot be read.
    """
    keys = [key.strip() for text in options.api_key for key in text.split(",")]
    path = options.api_key_file
    if path is not None:
        lines = (line.strip() for line in read_utf8(path).splitlines())
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise InputError(f"{path} holds no key")
        keys += listed
    if options.api_key and not any(keys):
        raise InputError("--api-key holds no key: without the option anybody can send requests")
    return tuple(dict.fromkeys(filter(None, keys)))


def check_files(settings: ServerSettings, drafts: DraftSettings) -> None:
    """Refuse files that would hold what all keys said, where each key learns for itself.

    Raises:
        InputError: There are such files.
    """
    files = (FILES[key] for key in SHARED_FILES)
    shared = [flag for name, role, flag in files if role in drafts.params.get(name, ())]
    if settings.isolates and shared:
        raise InputError(
            f"{' and '.join(shared)}: such a file would hold what all keys said, but each of "
            f"{len(settings.api_keys)} keys learns for itself: leave it out, or let them share "
            "with --share-between-keys"
        )


def take_keys(options: ServeOptions, drafts: DraftSettings, service: Service) -> None:
    """Read the keys again, and let them in instead of those before.

    Raises:
        InputError, OSError: As keys_of, check_files and Service.take_keys; nothing has changed.
    """
    keys, before = keys_of(options), service.settings
    if keys == before.api_keys:
        return
    after = before.with_keys(keys)
    check_files(after, drafts)
    record = options.record or options.spec_trace
    if after.isolates and not before.isolates and record is not None:
        raise InputError(
            f"{record} was begun for a single key, and each of {len(keys)} keys learns "
            "for itself: start the server again"
        )
    service.take_keys(keys)
    log.info("API keys have changed: %d now", len(keys))


class KeyWatch:
    """Takes the keys of a file again when it has changed; a context manager.

    A thread looks at the file, as its disk may hang. A file that cannot be used changes nothing:
    the log tells why, once for every change of the file.

    Args:
        path: The file.
        take: Reads it and takes its keys. Called from the thread, also for the file as it was at
            the start, which may have changed since it was read.
    """

    def __init__(self, path: Path, take: Callable[[], None]) -> None:
        self._path = path
        self._take = take
        self._seen: object = NEVER  # how the file was at the last look
        self._taken: object = NEVER  # how it was when its keys were taken, or refused
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngramspec-keys", daemon=True)

    def __enter__(self) -> KeyWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def look(self) -> None:
        """Look at the file; take its keys if it has changed, and not since the look before.

        So a file that is just being written is not read by halves.
        """
        state = _state_of(self._path)
        if state != self._seen:
            self._seen = state
        elif state != self._taken:
            self._taken = state
            try:
                self._take()
            except Exception as error:  # whatever it is: nobody else must get in, or be shut out
                log.warning("the API keys stay as they were: %s", error_line(error))

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()


def _state_of(path: Path) -> object:
    """Return what changes when a file is written or replaced, None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISFIFO(status.st_mode):  # as from <(...) of a shell: it can be read only once
        return NEVER
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
