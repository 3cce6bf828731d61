"""Files that appear whole or not at all, whatever fails and whenever the process dies.

Data goes to a hidden file beside the final one, which is synced and renamed. The writer locks the
hidden file, so that leftovers of killed writers can be told from files in use, and removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600  # files hold users' text
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOCK_SECONDS = 10.0
_RANDOM_BYTES = 4
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
_OLD_SECONDS = 60.0  # without locks: older temporary files are leftovers
# What os.link raises where a file system has no hard links: exFAT, some network shares.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)


@contextmanager
def new_file(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once the block has ended and all bytes are on disk.

    If the block raises or the process dies, an existing file is kept. A new file is private to its
    owner, a replacement gets the mode of the file it replaces. Leftovers of killed writers of the
    same path are removed.

    Args:
        path: The file.
        replace: False: raise FileExistsError if the file exists.

    Raises:
        FileExistsError: The file exists, and `replace` is False.
        OSError: The folder does not exist, the disk is full, or the like; names the path.
    """
    with temporary_file(path) as file:
        yield file
        commit(file, path, replace=replace)


@contextmanager
def temporary_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a hidden file beside `path`; it is removed after the block, unless it was renamed."""
    path = Path(path)
    remove_temporaries(path)
    file, temporary = _create(path)
    try:
        with _quiet_close(file), naming(path):
            yield file
    finally:
        # It may have been renamed. If it cannot be removed, the next writer tries again.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def commit(file: BinaryIO, path: str | os.PathLike[str], *, replace: bool = True) -> None:
    """Sync a file of `temporary_file` and give it its final name.

    Raises:
        FileExistsError: The file exists, and `replace` is False.
        OSError: It cannot be written or renamed, or what is there is no regular file; that is kept.
    """
    file.flush()
    os.fsync(file.fileno())
    if replace:
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a device would be gone
                raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
            os.chmod(file.name, mode & 0o7777)
        if fcntl is None:
            file.close()  # Windows cannot rename an open file
        os.replace(file.name, path)
    else:
        _rename_new(file, path)
    sync_folder(Path(path).parent)


def kind_unless_file(path: str | os.PathLike[str]) -> str:
    """Return what a path names, such as "a directory" or "a pipe"; "" for a regular file.

    To be asked before a file is opened: a pipe would wait for a writer.

    Raises:
        OSError: There is nothing, or it cannot be looked at.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return ""
    return next((kind for fits, kind in _KINDS if fits(mode)), "a device")


def private(name: str, flags: int) -> int:
    """Open a file as the `opener` of open() does; a new one is private to its owner."""
    return os.open(name, flags, PRIVATE)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in errors about a full disk, which the system leaves without one."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            error.filename = os.fspath(path)
        raise


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, if the system can; errors are ignored."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_temporaries(path: str | os.PathLike[str]) -> None:
    """Remove leftovers of killed writers of a path; those that cannot be removed stay."""
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
    """Create a temporary file, locked by this process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f".{path.name}.{os.urandom(_RANDOM_BYTES).hex()}")
        file = open(temporary, "w+b", opener=lambda name, _: private(name, flags))  # noqa: SIM115
        if fcntl is None:
            return file, temporary
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.fstat(file.fileno()).st_nlink:
                return file, temporary
        except OSError:
            return file, temporary
        file.close()  # another writer removed it as a leftover before it was locked


@contextmanager
def _quiet_close(file: BinaryIO) -> Iterator[None]:
    """Close a file after the block; flush and fsync have reported errors that matter."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _rename_new(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Rename a file unless the target exists."""
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
    """Lock out other ngramspec processes that write a path, by the file `path`.lock.

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
        with contextlib.suppress(OSError):  # closing its file releases it anyway
            lock.release()
