"""RecordFile: writes recorded requests to a file that only its owner can read, within a size."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.lab.recordings.record import DECISION, Head, Sessions, is_head, record_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MODE = 0o600
LEAST_BYTES = 1 << 16
HEAD_BYTES = 1 << 16  # a head is shorter
TAIL_BYTES = 1 << 20  # read at a time in search of the last line's end
KEY_DIGITS = 12
_SALT_BYTES = 16


class TooLongError(ValueError):
    """A record is longer than the file may be."""


class RecordFile:
    """A file of recorded requests that is open for writing; for one thread.

    A record is one line. It is there as a whole or, if the process dies in the middle, as a cut
    last line, which readers leave out and the next RecordFile removes. When the file reaches half
    of `max_bytes` it is renamed, in place of the one before it, and a new one begins.

    Args:
        path: Created, or extended if it is such a file.
        head: Of what is written now; the salt of the file is kept.
        max_bytes: Largest size of the file and the one before it together, None = any.

    Raises:
        InputError: It is not a regular file, or another process writes to it.
        FormatError: There is such a file of another format.
        VocabMismatchError: There is such a file of another tokenizer.
        OSError: It cannot be opened or written.
    """

    def __init__(
        self, path: str | os.PathLike[str], head: Head, max_bytes: int | None = None
    ) -> None:
        self.path = Path(path)
        if max_bytes is not None and max_bytes < LEAST_BYTES:
            raise InputError(f"max_bytes must be at least {LEAST_BYTES}, got {max_bytes}")
        self.num_bytes = 0  # written in all
        self._max_bytes = max_bytes
        self._head = head
        self._sessions = Sessions()
        self._digests: dict[str, str] = {}
        self._size = self._head_size = 0
        self._fd = self._open()
        try:
            self._begin()
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def older(self) -> Path:
        """Where the file goes when it is full: NAME.1.jsonl beside NAME.jsonl."""
        return self.path.with_name(f"{self.path.stem}.1{self.path.suffix}")

    def append(
        self, tenant: str, prompt: TokenIds, output: TokenIds, facts: Mapping[str, Any]
    ) -> None:
        """Write a record.

        Args:
            tenant: The id of the request's key, "" if there are not several. A digest is written.
            prompt: Its token ids.
            output: Those of the answer.
            facts: Further members of the record.

        Raises:
            TooLongError: It alone is longer than the file may be. Nothing was written.
            OSError: It could not be written; what was written of it has been taken back.
        """
        if tenant:
            facts = {"key": self._digest(tenant), **facts}
        place = self._sessions.place(tenant, prompt)
        record = b"".join(record_line(place, prompt, output, facts))
        if self._makes_room(len(record)):
            place = self._sessions.place(tenant, prompt)
            record = b"".join(record_line(place, prompt, output, facts))
        self._put(record)
        self._sessions.add(tenant, place, prompt, output)

    def append_decisions(self, decisions: Iterable[Mapping[str, Any]]) -> None:
        """Write what was decided on drafts, a line for each.

        Raises:
            As append.
        """
        for decision in decisions:
            line = json.dumps({DECISION: decision}).encode() + b"\n"
            self._makes_room(len(line))
            self._put(line)

    def close(self) -> None:
        """Put everything on the disk and close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(fd)
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
            flags |= getattr(os, name, 0)
        try:
            fd = os.open(self.path, flags, MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InputError(f"{self.path} is a link: name the file itself") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InputError(f"{self.path} is not a regular file: requests need one")
            _lock(fd, self.path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _begin(self) -> None:
        """Check what is there, remove a cut last line, and write the head."""
        self._size = os.fstat(self._fd).st_size
        salt = ""
        if self._size:
            salt, tokenizer = _first_head(_read_at(self._fd, HEAD_BYTES, 0), self.path)
            if tokenizer and self._head.tokenizer not in ("", tokenizer):
                raise VocabMismatchError(
                    f"{self.path} holds requests of another tokenizer: name another file"
                )
            self._size = _end_of_lines(self._fd, self._size)
            os.ftruncate(self._fd, self._size)
        if hasattr(os, "fchmod"):  # not on Windows, where modes do not keep others out
            os.fchmod(self._fd, MODE)  # also of a file that was there
        self._head = dataclasses.replace(self._head, salt=salt or secrets.token_hex(_SALT_BYTES))
        self._write_head()

    def _write_head(self) -> None:
        is_new = not self._size
        self._write(self._head.line())
        self._head_size = self._size if is_new else 0  # what was there can be set aside

    def _fits(self, num_bytes: int) -> bool:
        return self._max_bytes is None or self._size + num_bytes <= self._max_bytes // 2

    def _makes_room(self, num_bytes: int) -> bool:
        """Begin a new file where this one is too full; return whether it was."""
        full = not self._fits(num_bytes) and self._size > self._head_size
        if full:
            self._rotate()
        return full

    def _put(self, line: bytes) -> None:
        """Write a line, as a whole or not at all."""
        if not self._fits(len(line)):
            raise TooLongError(f"a line of {len(line)} bytes does not fit into {self._max_bytes}")
        if not self._size:  # the disk was full when the file began
            self._write_head()
        self._write(line)

    def _rotate(self) -> None:
        """Set the full file aside and begin a new one."""
        if fcntl is None:
            self.close()  # Windows cannot rename an open file
        else:
            os.fsync(self._fd)
        with contextlib.suppress(FileNotFoundError):  # somebody took it away
            os.replace(self.path, self.older)
        fd = self._open()
        old, self._fd = self._fd, fd
        if old >= 0:
            os.close(old)
        self._size = 0
        self._sessions = Sessions()
        self._write_head()

    def _write(self, data: bytes) -> None:
        """Write all of it, or take back what was written."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self.num_bytes += len(data)

    def _digest(self, tenant: str) -> str:
        """Return what stands for a key: slow to find out the key from, even if it is guessable."""
        digest = self._digests.get(tenant)
        if digest is None:
            salt = bytes.fromhex(self._head.salt)
            hashed = hashlib.scrypt(tenant.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=16)
            digest = self._digests[tenant] = hashed.hex()[:KEY_DIGITS]
        return digest


def _lock(fd: int, path: Path) -> None:
    """Keep other processes from writing to the file."""
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path}: another process records into it: name another file") from None


def _first_head(first: bytes, path: Path) -> tuple[str, str]:
    """Return the salt and the tokenizer of the head that a file begins with."""
    line, end, _ = first.partition(b"\n")
    try:
        value = json.loads(line) if end else None
        if is_head(value):
            salt = value["salt"]
            bytes.fromhex(salt)
            return str(salt), str(value["tokenizer"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise FormatError(f"{path}: there is a file that holds no recorded requests: name another one")


def _read_at(fd: int, num_bytes: int, offset: int) -> bytes:
    """Do as os.pread, which Windows lacks; what is written goes to the end all the same."""
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, num_bytes)


def _end_of_lines(fd: int, size: int) -> int:
    """Return where the last whole line ends."""
    while size:
        start = max(0, size - TAIL_BYTES)
        newline = _read_at(fd, size - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0
