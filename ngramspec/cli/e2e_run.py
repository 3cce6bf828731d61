"""The work of `ngramspec bench e2e`: prompts, model, runs, with progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.saved_costs import find_costs
from ngramspec.bench.e2e import PLAIN, Bench, Mode, Outcome, parse_mode
from ngramspec.cli.progress import progress
from ngramspec.cli.target import open_model, open_target
from ngramspec.cli.tasks import FREE, TASKS, Task
from ngramspec.drafters.names import DRAFTER_NAMES
from ngramspec.engine import Sampling
from ngramspec.engine.request import TokenIds
from ngramspec.errors import FormatError, InputError
from ngramspec.models import embedded_model
from ngramspec.tokenizers import fingerprint_of

WARM_UP = 64  # tokens of the prompt before anything is timed


@dataclass(frozen=True)
class PromptResult:
    """All outcomes of one prompt, the one without drafts first. text: the plain answer."""

    name: str
    prompt_len: int
    text: str
    outcomes: tuple[Outcome, ...]


def run_e2e(options: Mapping[str, Any]) -> list[PromptResult]:
    """Do what the options of the command say.

    Raises:
        InputError: A drafter or prompt that is not possible.
        FormatError: A damaged file.
        VocabMismatchError: A statistics file of another tokenizer.
        BackendError: llama.cpp cannot load or run the model.
        OSError: A file cannot be read.
    """
    tasks = load_prompts(options["files"]) if options["files"] else [*TASKS, FREE]
    modes = _modes(options)
    with open_model({**options, "mmap": True, "mlock": False}) as model:
        prompts = [_tokens(model, task, options["chat"]) for task in tasks]
        wanted = {"parallel": 1, "kv_unified": False}
        wanted["ctx_size"] = _context(options, model, tasks, prompts)
        with open_target({**options, **wanted}, model) as target:
            costs = find_costs(model, target.settings)
            bench = Bench(target, modes, options["policy"], options["max_draft"], costs)
            return _measure(options, model, bench, tasks, prompts, len(modes))


def load_prompts(paths: Sequence[Path]) -> list[Task]:
    """Read prompts: a file is one, or one per line where its name ends in .jsonl.

    Raises:
        InputError: A prompt is empty.
        FormatError: A line is no object with a "prompt", or there is none.
        OSError: A file cannot be read.
    """
    found: list[Task] = []
    for path in paths:
        if path.suffix == ".jsonl":
            found += _json_prompts(path)
        else:
            found.append(_prompt(path.stem, path.read_text("utf-8", "replace"), str(path)))
    return found


def _json_prompts(path: Path) -> list[Task]:
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
            text, name = record["prompt"], record.get("name", f"{path.stem}:{number}")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise FormatError(f'{where}: expected a JSON object with "prompt"') from None
        if not isinstance(text, str) or not isinstance(name, str):
            raise FormatError(f'{where}: "prompt" and "name" must be texts')
        found.append(_prompt(name, text, where))
    if not found:
        raise FormatError(f"{path} holds no prompt")
    return found


def _prompt(name: str, text: str, where: str) -> Task:
    if not text.strip():
        raise InputError(f"{where}: the prompt is empty")
    return Task(name, name, (text,))


def _modes(options: Mapping[str, Any]) -> list[Mode]:
    """Return plain decoding and the drafters."""
    specs = options["drafters"] or DRAFTER_NAMES
    path = options["model"] or embedded_model()
    files = {}
    if any("static=" in spec for spec in specs):
        files["tokenizer"] = fingerprint_of(path)
    return [parse_mode(spec, **files) for spec in dict.fromkeys((PLAIN, *specs))]


def _tokens(model: LlamaModel, task: Task, chat: bool | None) -> TokenIds:
    """Return a prompt in the model's tokens."""
    if bool(model.chat_template) if chat is None else chat:
        return model.tokenize_chat(task.messages)
    return model.tokenize("\n\n".join(task.turns), parse_special=True)


def _context(
    options: Mapping[str, Any],
    model: LlamaModel,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
) -> int:
    """Return the context that prompts and answers need, at most that of the model."""
    trained = model.n_ctx_train
    for task, prompt in zip(tasks, prompts, strict=True):
        if prompt.size >= trained:
            raise InputError(
                f"prompt {task.name!r} has {prompt.size} tokens, the model's context is {trained}"
            )
    longest = max(prompt.size for prompt in prompts)
    return int(min(longest + options["n_predict"] + options["max_draft"] + 1, trained))


def _measure(
    options: Mapping[str, Any],
    model: LlamaModel,
    bench: Bench,
    tasks: Sequence[Task],
    prompts: Sequence[TokenIds],
    num_modes: int,
) -> list[PromptResult]:
    sampling = Sampling(temperature=options["temp"], seed=options["seed"])
    bench.warm_up(prompts[0][:WARM_UP], sampling)
    each = num_modes * options["repeats"]
    found = []
    for number, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
        with progress(task.title, each * len(tasks), each * number) as advance:
            outcomes = bench.run(
                prompt,
                max_tokens=options["n_predict"],
                repeats=options["repeats"],
                sampling=sampling,
                advance=advance,
            )
        text = model.detokenize(outcomes[0].runs[0].token_ids)
        found.append(PromptResult(task.name, int(prompt.size), text, outcomes))
    return found
