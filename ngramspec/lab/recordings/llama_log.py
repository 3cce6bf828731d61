"""llama-server's log, as it is written with -v: answers token by token, and most prompts.

For every token of an answer there is a line with its id. The prompt of a request is logged as text,
and only when its slot starts the next one; so each slot's last request has none.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngramspec.lab.recordings.chats import MarkedText
from ngramspec.lab.recordings.lines import Bad, Line
from ngramspec.lab.recordings.request import RecordedRequest
from ngramspec.text.tokenizers import Tokenizer

# How its first line looks, and one of a slot: time, level, number of the slot and of the task.
FIRST_LINE = re.compile(r"\s*(?:\x1b\[[\d;]*m)*\d+\.\d\d\.\d{3}\.\d{3} [A-Z] ")
SLOT_LINE = re.compile(r"^slot +\S+: +id +\d+ \| task +-?\d+ \| ", re.MULTILINE)
_SLOT = re.compile(r"slot +(\S+): +id +(\d+) \| task +(-?\d{1,18}) \| (.*)", re.DOTALL)
_TOKEN = re.compile(r"n_gen = (\d{1,9}), n_remaining = -?\d+, next token: +(\d{1,9}) '")
_LAUNCH = "launching slot : "
_END = "stopped by EOS"
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class _Task:
    """A request. broken: a line of its answer is missing. ends: its last token is an end token."""

    output: array[int] = field(default_factory=lambda: array("i"))
    prompt: str = ""
    broken: bool = False
    ends: bool = False


class LlamaLog:
    """Reads such a log.

    Args:
        tokenizer: The target's, for prompts.

    num_answers, num_broken, num_without_prompt: What was found; of the answers, those that were
        left out because lines are missing or no prompt was logged.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.num_answers = self.num_broken = self.num_without_prompt = 0
        self._tokenizer = tokenizer

    def read(self, lines: Iterable[Line], bad: Bad) -> Iterator[RecordedRequest]:
        """Yield the requests in the order in which their answers began."""
        tasks = list(self._tasks(lines, bad))
        texts, size = MarkedText(self._tokenizer), self._tokenizer.fingerprint.vocab_size
        for task in tasks:
            output = np.array(task.output, dtype=np.int32)
            if task.ends:
                output = output[:-1]
            self.num_answers += 1
            if task.broken or not len(output) or output.max() >= size:
                self.num_broken += 1
            elif not task.prompt:
                self.num_without_prompt += 1
            else:
                yield RecordedRequest(texts.encode(task.prompt), output)

    def notes(self) -> Iterator[str]:
        """Yield what is missing in the log."""
        if not self.num_answers:
            yield "it has no answers: llama-server logs their tokens with -v"
        if self.num_without_prompt:
            yield (
                f"{self.num_without_prompt} of {self.num_answers} answers left out: their prompt "
                "is not in the log (it is logged when the slot starts its next request)"
            )
        if self.num_broken:
            yield (
                f"{self.num_broken} of {self.num_answers} answers left out: tokens are missing in "
                "the log, or it is that of another model"
            )

    def _tasks(self, lines: Iterable[Line], bad: Bad) -> Iterator[_Task]:
        tasks: dict[int, _Task] = {}  # by number; a server that is started again begins with 0
        started: list[_Task] = []
        for line in lines:
            match = _SLOT.search(_COLOURS.sub("", line.text))
            if match is None:
                continue
            number, text = int(match[3]), match[4]
            token = _TOKEN.match(text)
            if token is not None:
                if token[1] == "1":
                    tasks[number] = _Task()
                    started.append(tasks[number])
                task = tasks.get(number)
                if task is not None:
                    task.broken |= int(token[1]) != len(task.output) + 1
                    task.output.append(int(token[2]))
            elif text.startswith(_END) and number in tasks:
                tasks[number].ends = True
            elif text.startswith(_LAUNCH):
                self._take_prompt(text.removeprefix(_LAUNCH), tasks, line.number, bad)
        yield from started

    def _take_prompt(self, text: str, tasks: dict[int, _Task], number: int, bad: Bad) -> None:
        """Take the prompt of the request that a slot had before."""
        try:
            slot: dict[str, Any] = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            bad(number, f"a slot's state that is not JSON: {error}")
            return
        before, prompt = slot.get("id_task"), slot.get("prompt")
        if isinstance(before, int) and before in tasks and isinstance(prompt, str):
            tasks[before].prompt = prompt
