"""What benchmarks ask of a model: built-in tasks, and prompts from files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.errors import FormatError, InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ngramspec.llamacpp import LlamaModel

USER = "user"
NEEDED = 'expected a JSON object with "prompt", or with a question in "messages"'


@dataclass(frozen=True)
class Task:
    """One conversation whose last answer the model writes.

    roles: Of the turns, the last one not the assistant's; by default user, assistant, user, ...
    """

    name: str
    title: str
    turns: tuple[str, ...]
    roles: tuple[str, ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        roles = self.roles or cycle((USER, "assistant"))
        pairs = zip(roles, self.turns, strict=False)
        return [{"role": role, "content": text} for role, text in pairs]

    @property
    def request(self) -> str:
        """Return the first line of the last turn, which says what is wanted."""
        return self.turns[-1].split("\n", 1)[0]


def _fence(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.strip()}\n```"


INVOICE = """
def invoice_total(items, discount):
    total = 0
    for item in items:
        if item.price < 0:
            raise ValueError('negative price')
        total = total + item.price * item.count
    if discount:
        total = total - total * discount
    return round(total, 2)
"""

READ_TABLE = '''
def read_table(path, separator):
    """Read a table and return its rows as dictionaries."""
    rows = []
    with open(path) as file:
        header = file.readline().strip().split(separator)
        for line in file:
            line = line.strip()
            if not line or line.startswith('#'):
                continue
            values = line.split(separator)
            if len(values) != len(header):
                raise ValueError('bad row: %r' % line)
            rows.append(dict(zip(header, values)))
    return rows
'''

PUSH = '''
def push(self, job, priority=0):
    """Add a job to the queue."""
    with self.lock:
        self.counter += 1
        heapq.heappush(self.jobs, (priority, self.counter, job))
        self.changed.notify()
'''

POP = '''
def pop(self, timeout=None):
    """Remove the first job and return it."""
    with self.lock:
        while not self.jobs:
            if not self.changed.wait(timeout):
                raise TimeoutError('no job')
        priority, counter, job = heapq.heappop(self.jobs)
        return job
'''

CLOSE = '''
def close(self):
    """Wake all who wait."""
    with self.lock:
        self.closed = True
        self.changed.notify_all()
'''

PARTS = """
name,kind,count
bolt,steel,40
nut,brass,75
gear,steel,12
belt,rubber,8
"""

FILE = "\n\n\n".join(code.strip() for code in (PUSH, POP, CLOSE))

TASKS = (
    Task(
        "rename",
        "Rename a variable in a function",
        ("Rename `values` to `entry` in this code:\n\n" + _fence(READ_TABLE),),
    ),
    Task("repeat", "Repeat code", ("Repeat this code:\n\n" + _fence(FILE),)),
    Task(
        "find",
        "Find a function in a file",
        ("Show the function `close` from this file:\n\n" + _fence(FILE),),
    ),
    Task(
        "think",
        "Think, then answer",
        ("Think, then rename `item` to `entry` in this code:\n\n" + _fence(INVOICE),),
    ),
    Task("convert", "Convert a table", ("Convert to JSON:\n\n" + _fence(PARTS, "csv"),)),
)
TASK_NAMES = tuple(task.name for task in TASKS)
# No task of `bench e2e` and the demo: the embedded model, which can only copy, has no answer to it.
FREE = Task(
    "free",
    "Write free text",
    ("Tell a short story about a clock maker who moves to a fishing village by the sea.",),
)
# Kinds of work for `ngramspec check`, with short prompts: each is read dozens of times.
KINDS = (
    Task("copies", "Copy code", ("Repeat this code:\n\n" + _fence(POP),)),
    Task("edits", "Edit code", ("Rename `total` to `sum` in this code:\n\n" + _fence(INVOICE),)),
    replace(FREE, name="chats"),
)


def load_tasks(paths: Iterable[str | os.PathLike[str]]) -> list[Task]:
    """Read prompts: one per file, or one per line of a .jsonl file.

    Args:
        paths: Texts, or lines of JSON objects with "prompt" or a chat in "messages", whose last
            answer is the model's to write, and optionally "name"; or folders of such files, which
            are read in the order of their names.

    Raises:
        InputError: A prompt is empty.
        FormatError: A line has neither, or there is none.
        OSError: A file cannot be read.
    """
    tasks: list[Task] = []
    for path in _files(map(Path, paths)):
        if path.suffix == ".jsonl":
            lines = [*_json_tasks(path)]
            if not lines:
                raise FormatError(f"{path} holds no prompt")
            tasks += lines
        else:
            tasks.append(_task(path.stem, str(path), [(USER, path.read_text("utf-8", "replace"))]))
    return tasks


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted(one for one in path.iterdir() if one.is_file() and one.name[0] != ".")
        if not files:
            raise InputError(f"{path} holds no file")
        yield from files


def _json_tasks(path: Path) -> Iterator[Task]:
    from ngramspec.lab.recordings.chats import ASSISTANT, messages_of
    from ngramspec.lab.recordings.lines import BadLineError

    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
            text, name = record.get("prompt"), record.get("name", f"{path.stem}:{number}")
            messages = messages_of(record) if text is None else [(USER, text)]
        except BadLineError as error:
            raise FormatError(f"{where}: {error}") from None
        except (ValueError, AttributeError, RecursionError):
            raise FormatError(f"{where}: {NEEDED}") from None
        while messages and messages[-1][0] == ASSISTANT:
            messages.pop()
        if not messages:
            raise FormatError(f"{where}: {NEEDED}")
        if not isinstance(messages[-1][1], str) or not isinstance(name, str):
            raise FormatError(f'{where}: "prompt" and "name" must be texts')
        yield _task(name, where, messages)


def _task(name: str, where: str, messages: Sequence[tuple[str, str]]) -> Task:
    roles, turns = zip(*messages, strict=True)
    if not turns[-1].strip():
        raise InputError(f"{where}: the prompt is empty")
    return Task(name, name, turns, roles)


def sample_tokens(model: LlamaModel, count: int) -> npt.NDArray[np.int32]:
    """Return `count` tokens of the tasks' texts, repeated if they are too few."""
    import numpy as np

    text = "\n\n".join(turn for task in (*TASKS, FREE) for turn in task.turns)
    ids = model.tokenize(text)
    return np.resize(np.asarray(ids, dtype=np.int32), count)
