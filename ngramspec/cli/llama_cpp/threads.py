"""Options that say on which processors and how urgently threads run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.options import Decorator, option, options

if TYPE_CHECKING:
    from ngramspec.llamacpp.threads import ThreadPlan

SECTION = "Threads"
PRIORITY = click.IntRange(-1, 3)
BINARY = click.IntRange(0, 1)
NAMES = ("cpu_mask", "cpu_range", "cpu_strict", "prio", "poll")


def thread_options() -> Decorator:
    """Return the options of threads: for single tokens, and for batches."""
    return options(
        option(SECTION, "-C", "--cpu-mask", metavar="HEX",
               help="Processors for the threads, as a mask.  [default: all]"),
        option(SECTION, "-Cr", "--cpu-range", metavar="LOW-HIGH",
               help="The same as a range; adds to the mask."),
        option(SECTION, "--cpu-strict", type=BINARY, metavar="0|1",
               help="1: each thread has one of them for itself."),
        option(SECTION, "--prio", type=PRIORITY,
               help="Priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime."),
        option(SECTION, "--poll", type=click.IntRange(0, 100),
               help="How eagerly threads wait for work: 0 asleep, 100 always awake."
               "  [default: 50]"),
        option(SECTION, "-Cb", "--cpu-mask-batch", metavar="HEX",
               help="As --cpu-mask, for prompts.  [default: --cpu-mask]"),
        option(SECTION, "-Crb", "--cpu-range-batch", metavar="LOW-HIGH",
               help="As --cpu-range, for prompts."),
        option(SECTION, "--cpu-strict-batch", type=BINARY, metavar="0|1",
               help="As --cpu-strict, for prompts."),
        option(SECTION, "--prio-batch", type=PRIORITY, help="As --prio, for prompts."),
        option(SECTION, "--poll-batch", type=click.IntRange(0, 100),
               help="As --poll, for prompts."),
        option(SECTION, "--numa", env="NUMA", metavar="TYPE",
               type=click.Choice(["distribute", "isolate", "numactl"]),
               help="On NUMA machines: distribute threads over the nodes, isolate them on one, or "
               "as numactl says."),
    )  # fmt: skip


def thread_plans_of(values: Mapping[str, Any]) -> tuple[ThreadPlan, ThreadPlan] | None:
    """Return how threads run, for single tokens and for batches; None if no option says.

    Raises:
        InputError: A mask or a range is not valid.
    """
    single = {name: values.get(name) for name in NAMES}
    batch = {name: values.get(f"{name}_batch") for name in NAMES}
    if all(value is None for value in (*single.values(), *batch.values())):
        return None
    if batch["cpu_mask"] is None and batch["cpu_range"] is None:
        batch.update(cpu_mask=single["cpu_mask"], cpu_range=single["cpu_range"])
    for name in ("cpu_strict", "prio", "poll"):
        batch[name] = single[name] if batch[name] is None else batch[name]
    return _plan(single), _plan(batch)


def prepare_process(values: Mapping[str, Any]) -> None:
    """Set this process's priority and NUMA strategy as the options say; before a model is loaded.

    Raises:
        BackendError: llama-cpp-python is not installed.
    """
    from ngramspec.llamacpp.threads import set_numa, set_priority
    from ngramspec.text.tokenizers.llama_library import load_library

    set_priority(values.get("prio") or 0)
    if values.get("numa"):
        set_numa(load_library(), values["numa"])


def _plan(values: Mapping[str, Any]) -> ThreadPlan:
    from ngramspec.llamacpp.threads import POLL, ThreadPlan, cpus_of_mask, cpus_of_range

    cpus: frozenset[int] = frozenset()
    if values["cpu_mask"]:
        cpus |= cpus_of_mask(values["cpu_mask"])
    if values["cpu_range"]:
        cpus |= cpus_of_range(values["cpu_range"])
    return ThreadPlan(
        cpus=cpus,
        strict=bool(values["cpu_strict"]),
        priority=values["prio"] or 0,
        poll=POLL if values["poll"] is None else values["poll"],
    )
