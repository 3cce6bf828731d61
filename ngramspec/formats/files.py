"""Files that appear whole or not at all, whatever fails and whenever the process dies.

What is written goes to a hidden file beside the final one, is synced and renamed. Its writer holds
a lock on it, so that what a killed writer left is told from what another is at, and removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600  # files hold users' text
LOCK_SECONDS = 10.0
_RANDOM_BYTES = 4
_OLD_SECONDS = 60.0  # without locks: older ones are nobody's
# What os.link raises where a file system has no hard links: exFAT, some network shares.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)


@contextmanager
def new_file(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once the block has ended and all is on disk.

    When the block raises, or the process dies, what was there stays. A new file is its owner's
    alone, one that replaces another has that one's mode. What killed writers of the same path left
    is removed.

    Args:
        path: The file.
        replace: False: raise FileExistsError where there is one already.

    Raises:
        FileExistsError: There is a file, and not `replace`.
        OSError: The folder does not exist, the disk is full, or the like.
    """
    with temporary_file(path) as file:
        yield file
        commit(file, path, replace=replace)


@contextmanager
def temporary_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a hidden file beside `path`; it goes after the block, unless it was renamed."""
    path = Path(path)
    remove_temporaries(path)
    file, temporary = _create(path)
    try:
        with _quiet_close(file):
            yield file
    finally:
        # It may be renamed, or there is nothing more to be done about it: the next writer may.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def commit(file: BinaryIO, path: str | os.PathLike[str], *, replace: bool = True) -> None:
    """Sync a file of `temporary_file` and give it its final name.

    Raises:
        FileExistsError: There is a file, and not `replace`.
        OSError: It cannot be written or renamed; what was there stays.
    """
    file.flush()
    os.fsync(file.fileno())
    if replace:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(file.name, os.stat(path).st_mode & 0o7777)
        if fcntl is None:
            file.close()  # what is open cannot be renamed there
        os.replace(file.name, path)
    else:
        _rename_new(file, path)
    sync_folder(Path(path).parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to disk, as far as the system can: they hold without it as well."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_temporaries(path: str | os.PathLike[str]) -> None:
    """Remove what killed writers of a path have left beside it. What cannot be removed stays."""
    path = Path(path)
    named = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if named.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(temporary: str) -> None:
    if fcntl is None:
        if time.time() - os.stat(temporary).st_mtime > _OLD_SECONDS:
            os.unlink(temporary)
        return
    handle = os.open(temporary, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its writer lives
        os.unlink(temporary)
    finally:
        os.close(handle)


def _create(path: Path) -> tuple[BinaryIO, Path]:
    """Make a file that this process has locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f".{path.name}.{os.urandom(_RANDOM_BYTES).hex()}")
        file = open(temporary, "w+b", opener=lambda name, _: os.open(name, flags, PRIVATE))  # noqa: SIM115
        if fcntl is None:
            return file, temporary
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.fstat(file.fileno()).st_nlink:
                return file, temporary
        except OSError:
            return file, temporary
        file.close()  # another writer took it for a dead one's before it was locked


@contextmanager
def _quiet_close(file: BinaryIO) -> Iterator[None]:
    """Close a file after the block; all that matters was said by flush and fsync before."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _rename_new(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Rename, unless there is a file already."""
    if fcntl is None:
        file.close()
        os.rename(file.name, path)  # raises FileExistsError on Windows
        return
    try:
        os.link(file.name, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with locked(path):
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.replace(file.name, path)


@contextmanager
def locked(path: str | os.PathLike[str], seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Keep other processes of ours from writing a path: its lock is the file `path`.lock.

    Raises:
        TimeoutError: Another process held the lock all that time; names both files.
        OSError: The lock cannot be taken.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(f"{os.fspath(path)}.lock")
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"another process has held {lock.lock_file} for {seconds:g} s: end it if it hangs",
            str(path),
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it is released once its file is closed
            lock.release()
