"""LLM: a GGUF model, its engine and its drafters in one object; the front door."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.drafting.names import (
    DEFAULT_MAX_DRAFT,
    DEFAULT_ORDER,
    DEFAULT_POLICY,
    DEFAULT_SPEC,
    nearest,
)
from ngramspec.engine import Chunk, EngineThread, Generation, Request, Sampling, Speculation
from ngramspec.engine.policy import AUTO
from ngramspec.errors import ChatError, InputError, StateError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.fit import Limits
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.mtp import SecondSettings
from ngramspec.llamacpp.placement import Placement
from ngramspec.llamacpp.rope import Rope
from ngramspec.llamacpp.settings import ContextSettings, lay_out
from ngramspec.runtime import (
    DraftSettings,
    ModelSettings,
    Runtime,
    Settings,
    Tell,
    open_runtime,
    within_trained,
)
from ngramspec.text.chat.format import PLAIN_ANSWER
from ngramspec.text.chat.prompt import chat_prompt
from ngramspec.text.structured.guidance import schema_grammar

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)
Text = str | Sequence[int] | npt.NDArray[np.integer[Any]]  # one prompt: its text or its token ids
Messages = Sequence[Mapping[str, Any]]  # one conversation: role and content of each message
ToolList = Sequence[Mapping[str, Any]]  # in OpenAI's shape
CONTEXT_SIZE = 4096
AHEAD = 64  # requests of a list that are queued ahead of the running ones
MAX_QUEUE = 1 << 16
_END_SECONDS = 30.0  # that closing waits for calls that still use the model
_CHECK_SECONDS = 1.0  # how often a waiting stream checks whether the engine has failed
_SAMPLING = {field.name for field in dataclasses.fields(Sampling)}
_REQUEST = {field.name for field in dataclasses.fields(Request)} - {"prompt_ids"}
# What llama-cpp-python, llama.cpp and transformers call options, where it is not nearly the same.
_ELSEWHERE = {
    "model_path": "model",
    "n_ctx": "context_size",
    "n_threads": "threads",
    "n_parallel": "slots",
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
}


class LLM:
    """Generate text with drafts: the output of plain decoding, only faster.

    Args:
        model: A GGUF file, for a split model its first; None = the embedded model, on one thread.
        drafter: Names of n-gram drafters, comma-separated or in a sequence; None = plain decoding.
        slots: Requests that run at the same time and share batches, 1..256; further ones wait.
        context_size: Tokens of prompt and answer per request; more than the model's trained context
            is cut to that, with a warning, unless `settings` stretch it by RoPE scaling. None =
            4096, or the trained context if that is less. 0 = one trained context, cut to free
            memory, which all slots share: requests that do not fit in it together wait for one
            another.
        threads: CPU threads, None = one per physical core.
        n_gpu_layers: Layers on the GPU, -1 = all; "auto" = those that fit, but none of the embedded
            model or with exact. A warning tells about a GPU that llama.cpp was not built for.
        placement: Where the weights lie, instead of n_gpu_layers.
        loading: How the file is read; None = mapped.
        adapters: Files of LoRA adapters; `adapters` of a request says which are applied.
        fit: Fit "auto" and 0 to free memory, and refuse what cannot fit; False: neither. Limits say
            how much to leave free.
        flash_attn: True, False or "auto".
        settings: Further fields of ContextSettings by name; those that contradict `exact` are
            refused.
        tree: Most branches of a draft; "auto" = 4, of which those are sent that pay, if the slots
            share a cache, as they do unless `exact` or `settings` says otherwise; "off" = 1.
        params: Parameters by drafter name, as for create_drafter. Files (`static`, `dynamic`,
            `pool`) are opened once, and must be built with this model's tokenizer.
        policy: "auto", "gate", "fixed" or "shadow", see make_policy; or an AutoPolicy.
        max_draft: Longest draft in tokens, >= 1; None = 64. Must be None with an AutoPolicy,
            which sets the length itself.
        calibrate: Most seconds for measuring what passes cost, for "auto", where that is not known
            of this model in this setting; what was measured is kept. None = 2, 0 = do not measure.
        exact: Use only a setting in which drafts cannot change a bit of the logits; tested at the
            first start. Several slots have one thread then, and batches at most 64 tokens.
        order: Which drafter is asked first, as for create_drafter.
        min_draft: Shorter drafts are not sent, >= 0.
        draft_model: A smaller model, asked where it is worth its time: its file, or a
            DraftModelSettings. One of another vocabulary drafts through text. MtpSettings(): the
            model's own MTP heads instead, or those of a file, `path`, such as Gemma 4's assistants.
        context_shift: A full context discards a part of its tokens and goes on, as `num_keep` and
            `num_discard` of a request say; otherwise it ends the answer.

    Raises:
        InputError: A value is out of its bounds, a drafter or parameter is unknown.
        FormatError: Not a GGUF file, or a damaged statistics file.
        VocabMismatchError: A statistics file was built with another tokenizer.
        BackendError: llama-cpp-python is not installed or cannot run the model, or no setting is
            exact.
        OSError: A file cannot be read.

    model: The LlamaModel: tokenize, detokenize, chat template, metadata.
    engine: The Engine, for what this class does not offer. Its steps run in their own thread.

    Thread-safety: all methods, from any thread; requests of several threads share batches.

    Example:
        >>> with LLM() as llm:
        ...     answer = llm.generate("import os", max_tokens=4, temperature=0)
        ...     len(answer.token_ids)
        4
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse what __init__ does not know, with a hint; Python's own error has none."""
        parameters = inspect.signature(cls.__init__).parameters
        for name in sorted(options.keys() - parameters.keys()):
            raise InputError(f"unknown option {name!r}; {_hint(name, list(parameters)[1:])}")
        return super().__new__(cls)

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        drafter: str | Iterable[str] | None = DEFAULT_SPEC,
        *,
        slots: int = 4,
        context_size: int | None = None,
        threads: int | None = None,
        n_gpu_layers: int | Literal["auto"] = "auto",
        placement: Placement | None = None,
        loading: Loading | None = None,
        adapters: Sequence[str | os.PathLike[str]] = (),
        fit: bool | Limits = True,
        flash_attn: bool | Literal["auto"] = "auto",
        params: Mapping[str, Mapping[str, Any]] | None = None,
        policy: str | AutoPolicy = DEFAULT_POLICY,
        max_draft: int | None = None,
        calibrate: float | None = None,
        exact: bool = False,
        order: str = DEFAULT_ORDER,
        min_draft: int = 0,
        draft_model: str | os.PathLike[str] | SecondSettings | None = None,
        context_shift: bool = False,
        settings: Mapping[str, Any] | None = None,
        tree: int | str = AUTO,
    ) -> None:
        numbers = {"context_size": context_size, "threads": threads, "max_draft": max_draft}
        for name, value in {"slots": slots, **numbers}.items():
            if not (isinstance(value, int) or (value is None and name in numbers)):
                raise InputError(f"{name} must be a whole number, got {value!r:.80}")
        fields = dict(settings or {})
        names = [field.name for field in dataclasses.fields(ContextSettings)]
        for name in sorted(fields.keys() - names):
            raise InputError(f"settings has no field {name!r}; {nearest(name, names)}")
        if not isinstance(policy, str) and not (max_draft is calibrate is None):
            raise InputError("max_draft and calibrate are not for a policy of your own")
        if isinstance(draft_model, (str, os.PathLike)):
            draft_model = DraftModelSettings(path=draft_model)
        opened = ModelSettings(
            path=model,
            placement=placement or Placement(n_gpu_layers),
            loading=loading or Loading(),
            adapters=adapters,
            limits=fit if isinstance(fit, Limits) else Limits(enabled=fit),
        )
        drafts = DraftSettings(
            drafter=drafter,
            order=order,
            params=params or {},
            policy=policy,
            max_draft=DEFAULT_MAX_DRAFT if max_draft is None else max_draft,
            min_draft=min_draft,
            tree=tree,
            calibrate=calibrate,
            second=draft_model,
        )
        size, shared = fields.get("context_size"), fields.get("kv_unified")
        if size is None:
            asked = CONTEXT_SIZE if context_size is None else context_size
            tell: Tell = (lambda _: None) if context_size is None else log.warning
            size = within_trained(opened, asked, fields.get("rope", Rope()), tell)
        layout = lay_out(slots, slots * size, size, shared=shared, drafts=drafts.any, exact=exact)
        own: dict[str, Any] = {
            "slots": slots,
            **layout._asdict(),
            "n_batch": max(ContextSettings.n_batch, slots),
            "threads": threads,
            "flash_attn": flash_attn,
            **fields,
        }
        self._open(
            Settings(
                model=opened,
                context=ContextSettings(**own),
                drafts=drafts,
                exact=exact,
                max_queue=MAX_QUEUE,
                context_shift=context_shift,
            )
        )

    @classmethod
    def open(cls, settings: Settings, testing: Callable[[], object] = lambda: None) -> Self:
        """Open an LLM from settings of all its parts; arguments and errors as for open_runtime."""
        llm = super().__new__(cls)
        llm._open(settings, testing)
        return llm

    def _open(self, settings: Settings, testing: Callable[[], object] = lambda: None) -> None:
        runtime = open_runtime(settings, testing=testing)
        self.model, self.target, self.engine = runtime.model, runtime.target, runtime.engine
        self._use = _Use()
        # Also runs on garbage collection and at exit: no step may touch freed memory.
        self._finalizer = weakref.finalize(
            self, _end, EngineThread(self.engine), self._use, runtime
        )

    @overload
    def generate(self, prompts: Text, **options: Any) -> Generation: ...

    @overload
    def generate(self, prompts: Sequence[Text], **options: Any) -> list[Generation]: ...

    def generate(
        self, prompts: Text | Sequence[Text], **options: Any
    ) -> Generation | list[Generation]:
        """Continue one prompt or a list of them. Blocks until all have ended.

        Threads: safe; calls of several threads share batches.

        Args:
            prompts: A text, the token ids of a text (integers, shape (n,)), or a sequence of these.
                Special tokens in a text are read as plain text: pass ids for rendered prompts.
            **options: Fields of `Request` (max_tokens, stop, logprobs, timeout, ...), of
                `Sampling` (temperature, top_p, seed, grammar, ...), or `sampling=Sampling(...)`.
                `max_tokens` is -1 by default: until an end token or a full context.
                `json_schema`: a schema as a mapping, instead of a grammar, that the text follows.
                `prediction`: the expected answer, as text or ids. `speculation`: a
                `Speculation`, or False for no drafts.

        Returns:
            Generation: text (str), token_ids (list of int), accepted (list of bool: which of them
            came from drafts), finish_reason (str), timings (times in seconds); owned by the caller.
            For a sequence, a list in its order; a request that failed has finish_reason "error"
            and its exception in `error`.

        Raises:
            InputError: An option is unknown or out of its bounds, a schema is not valid, or a
                prompt does not fit. Of a sequence, all prompts are checked before one starts; the
                error begins with the place of the wrong one, such as "prompts[3]".
            BackendError: The model failed; for a sequence, in the request's `error` instead.
            StateError: The LLM is closed, or was opened before this process was forked.
        """
        if not _is_sequence(prompts):
            raise InputError(
                f"prompts must be a text, token ids or a sequence of these, got {prompts!r:.80}"
            )
        if _is_one(prompts):
            return self._run_one(lambda: self._request(self._prompt_ids(prompts), options))
        return self._run_all(
            "prompts", prompts, lambda one: self._request(self._prompt_ids(one), options)
        )

    @overload
    def chat(
        self, messages: Messages, *, tools: ToolList | None = None, **options: Any
    ) -> Generation: ...

    @overload
    def chat(
        self, messages: Sequence[Messages], *, tools: ToolList | None = None, **options: Any
    ) -> list[Generation]: ...

    def chat(
        self, messages: Any, *, tools: ToolList | None = None, **options: Any
    ) -> Generation | list[Generation]:
        """Answer one conversation, or each of a list of them.

        Args:
            messages: Mappings with role and content, as in OpenAI's API, or a sequence of such
                conversations. Contents are texts or lists of text parts.
            tools: Tools in OpenAI's shape, which the prompt tells the model of, by its template or
                as text where that knows none. Nothing makes it call them as they ask.
            **options: As for generate. `special` is True where the marks of the model's reasoning
                and calls are control tokens.

        Returns:
            As generate, and `message`: the answer in its parts, a ChatMessage with content and
            reasoning (str) and calls (list of OpenAI's tool calls, arguments as JSON text). `text`
            is all of it as the model wrote it. With `json_schema` all of it is content.

        Raises:
            As generate; InputError also without a chat template, when the template refuses, or
            where messages or tools do not have OpenAI's shape: a ChatError, whose `field` is the
            place, such as "tools[0]".
        """
        if isinstance(messages, str) or not _is_sequence(messages):
            words = f"messages must be a list of messages, or of lists, got {messages!r:.80}"
            raise ChatError(words, "messages")
        if _is_conversation(messages):
            return self._run_one(lambda: self._chat_request(messages, tools, options))
        return self._run_all(
            "conversations", messages, lambda one: self._chat_request(one, tools, options)
        )

    def stream(
        self, prompt: Text | Messages, *, tools: ToolList | None = None, **options: Any
    ) -> Iterator[Chunk]:
        """Generate and yield text as it comes; closing the iterator ends the request.

        Args:
            prompt: A text, token ids, or the messages of a conversation.
            tools: As for chat; for a conversation only.
            **options: As for generate.

        Returns:
            An iterator of Chunk: text, token_ids, which pieces of the text came from drafts, and in
            the last one the finish_reason. `chunk.generation` is the whole Generation; after the
            last chunk of a conversation it has its `message`, as chat returns it.

        Raises:
            As generate and chat; the iterator raises failures during generation.
        """
        chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        with self._use.begun():
            if _is_conversation(prompt):
                request = self._chat_request(cast("Messages", prompt), tools, options)
            elif tools:
                raise InputError("tools are for a conversation, the prompt is none")
            else:
                request = self._request(self._prompt_ids(prompt), options)
            generation = self.engine.submit(request, chunks.put)
        stream = _hand_out(self, generation, chunks)
        next(stream)  # enters its try block: from here on, closing it ends the request
        return stream

    def run(self, request: Request) -> Generation:
        """Run a ready Request; returns and raises as generate."""
        return self._run_one(lambda: request)

    def close(self) -> None:
        """End all requests, save what was learned, free the model; a second call does nothing.

        Raises:
            NgramspecError, OSError: What was learned could not be saved; the rest is done.
        """
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompt_ids(self, prompt: Any) -> npt.NDArray[np.int32]:
        if isinstance(prompt, str):
            return self.model.tokenize(prompt)
        return _as_ids(prompt, "the prompt")

    def _chat_request(
        self, messages: Messages, tools: ToolList | None, options: Mapping[str, Any]
    ) -> Request:
        prompt = chat_prompt(self.model, messages, tools)
        follows = options.get("json_schema") is not None  # which leaves no room for marks
        format = PLAIN_ANSWER if follows else prompt.format
        own = {"format": format, "special": format.shows_special}
        return self._request(self.model.tokenize_prompt(prompt.text), {**own, **options})

    def _request(self, prompt_ids: npt.NDArray[np.int32], options: Mapping[str, Any]) -> Request:
        """Make a request from options that are fields of Request or Sampling."""
        fields = dict(options)
        sampling = fields.pop("sampling", Sampling())
        if not isinstance(sampling, Sampling):
            raise InputError(f"sampling must be a Sampling, got {sampling!r:.80}")
        own = {name: fields.pop(name) for name in _SAMPLING & set(fields)}
        if (schema := fields.pop("json_schema", None)) is not None:
            if own.get("grammar") or sampling.grammar:
                raise InputError("give either a grammar or a json_schema")
            own["grammar"] = schema_grammar(schema)
        fields["stop"] = _as_stops(fields.get("stop"))
        drafts = fields.pop("speculation", True)
        drafts = Speculation(enabled=drafts) if isinstance(drafts, bool) else drafts
        if not isinstance(drafts, Speculation):
            raise InputError(f"speculation must be a Speculation or a bool, got {drafts!r:.80}")
        if "prediction" in fields:
            text = fields.pop("prediction")
            plain = isinstance(text, str)
            fields["prediction_ids"] = (
                self.model.tokenize(text, add_special=False)
                if plain
                else _as_ids(text, "prediction")
            )
        names = _SAMPLING | _REQUEST | {"json_schema", "prediction"}
        for name in sorted(set(fields) - names):
            raise InputError(f"unknown option {name!r}; {_hint(name, names)}")
        sampling = dataclasses.replace(sampling, **own) if own else sampling
        return Request(prompt_ids=prompt_ids, sampling=sampling, speculation=drafts, **fields)

    def _run_one(self, request: Callable[[], Request]) -> Generation:
        with self._use.begun():
            generation = self.engine.submit(request())
        try:
            generation.wait()
        finally:
            generation.cancel()
        if generation.error is not None:
            raise generation.error
        return generation

    def _run_all(
        self, name: str, prompts: Iterable[Any], request_of: Callable[[Any], Request]
    ) -> list[Generation]:
        """Run a request for each prompt; an error names the place of a wrong one."""
        requests: list[Request] = []
        for number, prompt in enumerate(prompts):
            try:
                with self._use.begun():
                    requests.append(request_of(prompt))
                    self.engine.check(requests[-1])
            except InputError as error:
                error.args = (f"{name}[{number}]: {error}",)  # whatever its type knows is kept
                raise
        generations: list[Generation] = []
        pending: deque[Generation] = deque()
        try:
            for request in requests:
                if len(pending) >= self.engine.num_slots + AHEAD:
                    pending.popleft().wait()
                with self._use.begun():
                    generations.append(self.engine.submit(request))
                pending.append(generations[-1])
            for generation in pending:
                generation.wait()
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        return generations


class _Use:
    """Which calls use the model in threads of their own: it may be freed once all have ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._count = 0
        self._ended = False

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Count a call while the block runs.

        Raises:
            StateError: The LLM is closed, or was opened before this process was forked.
        """
        if os.getpid() != self._process:
            raise StateError("the LLM's thread stayed in the process that opened it: open one here")
        with self._changed:
            if self._ended:
                raise StateError("the LLM is closed")
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self, seconds: float) -> bool:
        """Let no call begin, and wait for those that have; return whether all have ended."""
        with self._changed:
            self._ended = True
            return self._changed.wait_for(lambda: not self._count, seconds)


def _hint(name: str, names: Iterable[str]) -> str:
    """Return a hint on the option that an unknown one may be, in other programs' words too."""
    words = set(names)
    if (same := _ELSEWHERE.get(name)) in words:
        return f"did you mean {same}?"
    if name in inspect.signature(LLM.__init__).parameters:
        return "it is an option of LLM()"
    return nearest(name, sorted(words))


def _end(thread: EngineThread, use: _Use, runtime: Runtime) -> None:
    if thread.is_current:  # a collection, or a callback: that thread cannot wait for itself
        threading.Thread(target=_end, args=(thread, use, runtime)).start()
        return
    unused = use.end(_END_SECONDS)
    thread.close(drain=False)
    if unused and not thread.alive:
        runtime.close()
    else:  # what hangs still uses the model
        runtime.saves.close()


def _hand_out(llm: LLM, generation: Generation, chunks: queue.SimpleQueue[Chunk]) -> Iterator[Any]:
    """Yield None, then chunks until the last one, or until the engine has failed.

    llm: Stays open meanwhile, also where nothing else refers to it.
    """
    ended = False
    try:
        yield None
        while True:
            try:
                chunk = chunks.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if ended:  # and has been for a while: no chunk is on its way
                    break
                ended = generation.finish_reason is not None
                continue
            yield chunk
            if chunk.finish_reason is not None:
                break
    finally:
        generation.cancel()
    if generation.error is not None:
        raise generation.error


def _is_one(prompts: Any) -> bool:
    """Return whether this is one prompt: a text, or ids."""
    if isinstance(prompts, (str, bytes)):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim <= 1
    return bool(len(prompts)) and isinstance(prompts[0], (int, np.integer))


def _is_sequence(messages: Any) -> bool:
    """Return whether this has numbered elements, of whatever type it is."""
    numbered = hasattr(messages, "__len__") and hasattr(messages, "__getitem__")
    return numbered and not isinstance(messages, Mapping)


def _is_conversation(messages: Any) -> bool:
    if isinstance(messages, (str, np.ndarray)) or not _is_sequence(messages):
        return False
    return len(messages) > 0 and isinstance(messages[0], Mapping)


def _as_stops(stop: Any) -> tuple[str, ...]:
    if stop is None or isinstance(stop, str):
        return () if stop is None else (stop,)
    if not isinstance(stop, Collection):  # an iterator would be at its end for the next prompt
        raise InputError(f"stop must be a text or texts, got {stop!r:.80}")
    return tuple(stop)


def _as_ids(prompt: Any, name: str) -> npt.NDArray[np.int32]:
    try:
        ids = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        ids = np.empty(())
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InputError(f"{name} must be a text or a sequence of token ids, got {prompt!r:.80}")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= 1 << 31):
        raise InputError(f"token ids of {name} must be in 0..2147483647")
    return ids.astype(np.int32)
