"""ChatParser: splits an answer, as it comes, into reasoning, content and tool calls."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence

from ngramspec.text.chat.calls.format import CallFormat, Mark, NotACallError
from ngramspec.text.chat.delta import ChatMessage, Delta, Kind
from ngramspec.text.chat.reasoning import ReasoningFormat
from ngramspec.text.chat.text import Read, Stops, Text
from ngramspec.text.chat.tools import Tools

MOST_GIVEN_BACK = 1 << 18  # characters of an answer; after as many no mark begins a call


class ChatParser:
    """Parses one answer. Text that only looked like a call is content.

    Args:
        formats: The formats that calls may have; the first ones are tried first.
        tools: The tools that the model can call.
        reasoning: Splits reasoning from the answer, None = do not split.
        begun: The prompt has opened the reasoning.
        hidden: Marks that are left out of the content.
        start: Text that the prompt holds already and the content shall have.

    parses_reasoning: Reasoning is told from content.
    plain: All further text is content.
    thoughts: Where reasoning stood in the answer, marks included: from a character up to another.

    Cost: linear in the answer, however it is cut.
    """

    def __init__(
        self,
        formats: Sequence[CallFormat],
        tools: Tools,
        reasoning: ReasoningFormat | None = None,
        begun: bool = False,
        hidden: Sequence[str] = (),
        start: str = "",
    ) -> None:
        self.num_calls = 0  # complete calls
        self.thoughts: list[tuple[int, int]] = []
        self.tools = tools
        self.parses_reasoning = reasoning is not None
        self.plain = False
        self._reasoning = reasoning
        self._formats = [calls for calls in formats if tools or calls.whole]
        self._hidden = hidden
        self._limit = None if tools.several else 1
        self._text = Text()
        self._deltas: list[Delta] = []
        self._kind: Kind = "content"  # of the pieces
        self._pieces: list[str] = []  # that were read since the last delta
        self._space: list[str] = []  # whitespace that may be dropped
        self._format: CallFormat | None = None  # that is being read
        self._index = -1  # of the current or last call
        self._arguments: list[str] = []  # its own
        self._has_content = False  # what was read last is content
        self._reader: Generator[None, None, None] | None = self._read(begun)
        self._add("content", start)

    @property
    def called(self) -> bool:
        return self._index >= 0

    @property
    def completed(self) -> bool:
        """Return whether calls were found whose last one can be run: an end may have cut it."""
        try:
            return self.called and isinstance(json.loads("".join(self._arguments)), dict)
        except (ValueError, RecursionError):
            return False

    def feed(self, text: str, last: bool = False) -> list[Delta]:
        """Return the pieces that are certain by now; with `last` all the rest."""
        if self.plain:
            return [Delta("content", text)] if text else []
        self._text.feed(text, last)
        if self._reader is not None:
            try:
                next(self._reader)
            except StopIteration:
                self._reader = None
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def message(self, text: str) -> ChatMessage:
        message = ChatMessage()
        for delta in self.feed(text, last=True):
            message.add(delta)
        return message

    # What readers of calls tell.

    def content(self, text: str) -> None:
        """Add a piece of content; whitespace at its end waits for more."""
        self._add_trimmed("content", text)

    def reasoning(self, text: str) -> None:
        """Add a piece of reasoning; whitespace at its end waits for more."""
        self._add_trimmed("reasoning", text)

    def reasoned(self, start: int, end: int) -> None:
        self.thoughts.append((start, end))

    def begin(self, name: str, call_id: str = "") -> None:
        """Begin a call: what was read so far is not content any more."""
        assert self._format is not None
        self._text.release()
        if self._format.keeps_space and self._has_content:
            self._add("content", "".join(self._space))
        self._has_content = False
        self._space.clear()
        self._flush()
        self._index += 1
        self._arguments.clear()
        call_id = call_id or self._format.new_id()
        self._deltas.append(Delta("call", name, self._index, call_id))

    def arguments(self, text: str) -> None:
        self._arguments.append(text)
        self._add("arguments", text)

    def end(self) -> None:
        self.num_calls += 1
        if self._limit is not None and self.num_calls >= self._limit:
            raise _EnoughError
        self._text.keep()

    # The answer.

    def _read(self, begun: bool) -> Read[None]:
        if self._reasoning is not None:
            begun = begun or (yield from self._opens(self._reasoning))
        try:
            if self._reasoning is not None and begun:
                yield from self._read_reasoning(self._reasoning, 0)
            yield from self._read_content()
        except _EnoughError:
            self._space.clear()
            while not self._text.ended:
                self._text.drop()
                yield
        if not self.called:
            self._add("content", "".join(self._space))

    def _opens(self, reasoning: ReasoningFormat) -> Read[bool]:
        """Read the open mark of the reasoning at the start, or its end if there is no reasoning."""
        self._text.keep()
        yield from self._text.space()
        if (yield from self._text.passes(reasoning.open)):
            self._text.release()
            return True
        if (yield from self._text.passes(reasoning.close)):
            self._text.release()
            yield from self._text.space()
        else:
            self._text.give_back()
        return False

    def _read_reasoning(self, reasoning: ReasoningFormat, start: int) -> Read[None]:
        """Read reasoning after its open mark, which is at `start`, up to the answer."""
        self._space.clear()
        yield from self._text.space()
        marks = self._marks_in_reasoning()
        ends = [mark for mark in (reasoning.close, reasoning.content_open) if mark]
        stops = Stops((*ends, *marks))
        while True:
            mark = yield from self._text.until(stops, self.reasoning)
            beyond = len(mark) if mark in marks else 0  # a call's mark is no reasoning
            self.reasoned(start, self._text.position - beyond)
            if mark in marks and not (yield from self._read_calls(mark)):
                self.thoughts.pop()
                self.reasoning(mark)
                continue
            self._space.clear()
            if mark in ends:
                yield from self._text.space()
            return

    def _marks_in_reasoning(self) -> list[str]:
        ending = [calls for calls in self._formats[:1] if calls.ends_reasoning]
        return [mark.text for calls in ending for mark in calls.marks if not mark.first]

    def _read_content(self) -> Read[None]:
        yield from self._read_first()
        again = self._reasoning if self._reasoning and self._reasoning.again else None
        marks = [mark.text for calls in self._formats for mark in calls.marks if not mark.first]
        stops = Stops((*marks, *self._hidden, *((again.open,) if again else ())))
        while True:
            mark = yield from self._text.until(stops, self.content if stops.marks else self._plain)
            if not mark:
                return
            if again and mark == again.open:
                yield from self._read_reasoning(again, self._text.position - len(mark))
            elif mark in marks and not (yield from self._read_calls(mark)):
                self.content(mark)

    def _plain(self, text: str) -> None:
        self._add("content", "".join((*self._space, text)))
        self._space.clear()
        self.plain = not self._text.ended

    def _read_first(self) -> Read[None]:
        """Read calls whose mark must be the first text of an answer."""
        for calls in self._formats:
            for mark in calls.marks:
                if not mark.first:
                    continue
                self._text.keep()
                yield from self._text.space()
                if not (yield from self._text.starts(mark.text)):
                    self._text.give_back()
                    continue
                if not mark.inside:
                    self._text.skip(len(mark.text))
                if (yield from self._read_row(calls, mark)):
                    return

    def _read_calls(self, text: str) -> Read[bool]:
        """Read the calls after a mark; return whether there are any."""
        for calls in self._formats:
            for mark in calls.marks:
                if mark.text == text and not mark.first:
                    self._text.keep()
                    if (yield from self._read_row(calls, mark)):
                        return True
        return False

    def _read_row(self, calls: CallFormat, mark: Mark) -> Read[bool]:
        """Read calls in a format; return False, and the text is given back, if there are none."""
        self._format, before = calls, self._index
        try:
            if self._text.num_given_back > MOST_GIVEN_BACK:
                raise NotACallError  # each mark may be read to the end of the answer in vain
            yield from calls.read(mark, self._text, self)
        except NotACallError:
            self._text.give_back()
            return self._index > before
        self._text.release()
        return True

    # The pieces.

    def _add_trimmed(self, kind: Kind, text: str) -> None:
        shown = text.rstrip()
        if shown:
            self._has_content = kind == "content"
            self._add(kind, "".join(self._space))
            self._space.clear()
            self._add(kind, shown)
        if len(shown) < len(text):
            self._space.append(text[len(shown) :])

    def _add(self, kind: Kind, text: str) -> None:
        if kind != self._kind:
            self._flush()
            self._kind = kind
        if text:
            self._pieces.append(text)

    def _flush(self) -> None:
        """Make the pieces a delta."""
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            index = self._index if self._kind == "arguments" else 0
            self._deltas.append(Delta(self._kind, text, index))


class _EnoughError(Exception):
    """As many calls were read as the request allows."""
