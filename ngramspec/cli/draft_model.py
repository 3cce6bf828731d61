"""The options of a draft model and of MTP heads, with llama.cpp's names of today and before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ngramspec.cli.drafts import NO_DRAFTS, DraftOptions
from ngramspec.cli.model import buffers_in, downloaded_model, layers_in, pulled_model
from ngramspec.cli.options import THREADS, complete_model, flag, names_in
from ngramspec.cli.target import CACHE, CACHE_TYPE
from ngramspec.llamacpp.placement import ALL, Placement
from ngramspec.text.tokenizers.gguf import check_gguf

if TYPE_CHECKING:
    from ngramspec.llamacpp.mtp import SecondSettings
    from ngramspec.runtime import DraftSettings

# llama.cpp's words for a draft model and for MTP heads of the target, in --spec-type.
NAME, HEADS = "draft-simple", "draft-mtp"
# What an assistant has of the target.
OF_THE_TARGET = (
    *("device_draft", "threads_draft", "threads_batch_draft", "ctx_size_draft"),
    *("cache_type_k_draft", "cache_type_v_draft", "spec_replace"),
)
# Where weights lie: an assistant has its own, heads in the model's file have not.
OF_WEIGHTS = ("n_gpu_layers_draft", "cpu_moe_draft", "n_cpu_moe_draft", "override_tensor_draft")
DEFAULTS = (None, 0, False, (), CACHE_TYPE)  # of all these options


@dataclass
class DraftModelOptions:
    """A draft model, or MTP heads."""

    section = "Draft model"
    # fmt: off
    model_draft: Path | None = flag(
        "-md --model-draft --spec-draft-model", "Draft model, best of the same "
        "vocabulary: a GGUF file, or the name of a model that Ollama has pulled; or none. With "
        "--spec-type draft-mtp: a file of MTP heads, such as Gemma 4's.",
        env="SPEC_DRAFT_MODEL MODEL_DRAFT", shell_complete=complete_model)
    hf_repo_draft: str | None = flag("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "The same by "
        "its name on Hugging Face, if it is downloaded.",
        env="SPEC_DRAFT_HF_REPO HFD_REPO", metavar="USER/MODEL[:QUANT]")
    spec_draft_n_max: int | None = flag(
        "--spec-draft-n-max", "Its longest draft, or that of MTP heads, in tokens."
        "  [default: --draft-max, or 16; of MTP heads 3]", env="SPEC_DRAFT_N_MAX", low=1)
    spec_draft_n_min: int | None = flag("--spec-draft-n-min", "Its shortest draft, in tokens.  "
        "[default: --draft-min, where there is one, or 0]", env="SPEC_DRAFT_N_MIN", low=0)
    draft_p_min: float | None = flag("--draft-p-min --spec-draft-p-min", "Its drafts, or those of "
        "MTP heads, end before a token less probable than N.  [default: 0.75; of MTP heads 0]",
        env="SPEC_DRAFT_P_MIN DRAFT_P_MIN", low=0, high=1)
    n_gpu_layers_draft: str | None = flag(
        "-ngld --n-gpu-layers-draft --gpu-layers-draft --spec-draft-ngl", "Its layers on the GPU: "
        "a number, all, or auto: all if all of the model's are there.  [default: auto]",
        env="N_GPU_LAYERS_DRAFT", metavar="N")
    device_draft: str | None = flag(
        "-devd --device-draft --spec-draft-device", "Devices for them, comma-separated; none: no "
        "device.  [default: all]", env="DEVICE_DRAFT", metavar="NAMES")
    threads_draft: int | None = flag("-td --threads-draft --spec-draft-threads", "Its threads.  "
        "[default: --threads]", env="THREADS_DRAFT", type=THREADS)
    threads_batch_draft: int | None = flag(
        "-tbd --threads-batch-draft --spec-draft-threads-batch", "Its threads for prompts.  "
        "[default: --threads-draft]", env="THREADS_BATCH_DRAFT", type=THREADS)
    ctx_size_draft: int = flag(
        "-cd --ctx-size-draft", "Its context of all slots together, in tokens; 0: the target's. "
        "Where a text is longer, it does not draft.", env="CTX_SIZE_DRAFT", default=0, low=0)
    cache_type_k_draft: str = flag("-ctkd --cache-type-k-draft --spec-draft-type-k", "Type of its "
        "cached keys.", env="SPEC_DRAFT_CACHE_TYPE_K CACHE_TYPE_K_DRAFT", **CACHE)
    cache_type_v_draft: str = flag("-ctvd --cache-type-v-draft --spec-draft-type-v", "Type of its "
        "cached values.", env="SPEC_DRAFT_CACHE_TYPE_V CACHE_TYPE_V_DRAFT", **CACHE)
    cpu_moe_draft: bool = flag("-cmoed --cpu-moe-draft --spec-draft-cpu-moe", "Keep the experts of "
        "a mixture in the CPU's memory.", env="SPEC_DRAFT_CPU_MOE CPU_MOE_DRAFT", default=False)
    n_cpu_moe_draft: int = flag(
        "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe", "The same for the "
        "first N layers.", env="SPEC_DRAFT_N_CPU_MOE N_CPU_MOE_DRAFT", default=0, low=0)
    override_tensor_draft: tuple[str, ...] = flag(
        "-otd --override-tensor-draft --spec-draft-override-tensor", "As --override-tensor, for "
        "the draft model.", default=(), metavar="PATTERN=MEMORY")
    spec_replace: tuple[tuple[str, str], ...] = flag(
        "--spec-replace", "For a draft model of another vocabulary: write TARGET, such as a "
        "chat marker, as DRAFT, and back (repeatable); also as one word, 'TARGET DRAFT'.",
        default=(), nargs=2, type=str, metavar="TARGET DRAFT")
    # What older versions of llama.cpp did with it does not exist here.
    draft_p_split: float | None = flag("--draft-p-split --p-split --spec-draft-p-split",
        hidden=True, env="SPEC_DRAFT_P_SPLIT DRAFT_P_SPLIT", low=0, high=1)
    # fmt: on

    @property
    def names_model(self) -> bool:
        """Whether the options name a draft model or a file with MTP heads; "none" names none."""
        return str(self.model_draft or NO_DRAFTS) != NO_DRAFTS or self.hf_repo_draft is not None

    def second(
        self, slots: int, *, heads: bool, longest: int | None, shortest: int = 0
    ) -> SecondSettings | None:
        """Return the settings of a draft model or MTP heads, None without one.

        Lines on stderr tell about options that do nothing.

        Args:
            slots: Of the target.
            heads: MTP heads draft, not a draft model.
            longest, shortest: Bounds of all drafts; None: options set none.

        Raises:
            As draft_settings.
        """
        from ngramspec.engine.sources import draft_model, mtp
        from ngramspec.llamacpp.draft_model import DraftModelSettings
        from ngramspec.llamacpp.mtp import MtpSettings

        n_max, p_min = (mtp.N_MAX, mtp.P_MIN) if heads else (draft_model.N_MAX, draft_model.P_MIN)
        n_max = self.spec_draft_n_max or longest or n_max
        n_min = self.spec_draft_n_min
        n_min = min(shortest, n_max) if n_min is None else n_min
        p_min = p_min if self.draft_p_min is None else self.draft_p_min
        if self.draft_p_split is not None:
            click.echo("--draft-p-split does nothing: drafts are not split", err=True)
        file = self._file()
        if heads:
            settings = MtpSettings(n_max=n_max, n_min=n_min, p_min=p_min)
            if file is None:
                reason = "the model's own MTP heads run as the model does"
                self._tell_idle((*OF_THE_TARGET, *OF_WEIGHTS), reason)
                return settings
            self._tell_idle(OF_THE_TARGET, "an assistant runs as the target, in its cache")
            return replace(settings, path=file[0], placement=self._placement())
        if file is None:
            self._tell_idle(("spec_replace",), "there is no draft model")
            return None
        return DraftModelSettings(
            path=file[0],
            name=file[1],
            n_max=n_max,
            n_min=n_min,
            p_min=p_min,
            placement=self._placement(),
            context_size=self.ctx_size_draft // slots,
            threads=self.threads_draft,
            threads_batch=self.threads_batch_draft,
            type_k=self.cache_type_k_draft,
            type_v=self.cache_type_v_draft,
            replace=self.spec_replace,
        )

    def _tell_idle(self, names: Iterable[str], reason: str) -> None:
        """Tell in a line which options do nothing, if some were given."""
        idle = [
            f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in DEFAULTS
        ]
        if idle:
            does = "does" if len(idle) == 1 else "do"
            click.echo(f"{', '.join(idle)} {does} nothing: {reason}", err=True)

    def _file(self) -> tuple[Path, str] | None:
        """Return the file of the draft model and what it is called; None if there is none."""
        path = None if str(self.model_draft) == NO_DRAFTS else self.model_draft
        path = downloaded_model(path, self.hf_repo_draft, None, "--model-draft")
        if path is None:
            return None
        named = pulled_model(path, "--model-draft")
        check_gguf(named[0])  # before the target, which may take long to load
        return named

    def _placement(self) -> Placement:
        return Placement(
            layers_in(self.n_gpu_layers_draft, "--n-gpu-layers-draft"),
            devices=names_in(self.device_draft),
            cpu_experts=ALL if self.cpu_moe_draft else self.n_cpu_moe_draft,
            buffers=buffers_in(self.override_tensor_draft, "--override-tensor-draft"),
        )


@dataclass
class AllDraftOptions(DraftOptions, DraftModelOptions):
    """Drafters, and a draft model or MTP heads beside them."""

    def draft_settings(self, slots: int, exact: bool) -> DraftSettings:
        """Return what drafts.

        Lines on stderr tell about options that do nothing.

        Args:
            slots: Of the target.
            exact: The target must be exact.

        Raises:
            click.UsageError: Options contradict one another.
            InputError: An unknown drafter, a model that is not downloaded, layers that are no
                number.
            ModelNotFoundError: No file and no model of Ollama's has the name.
        """
        names = [name.strip() for name in ",".join(self.spec_type).split(",")]
        heads = HEADS in names
        if NAME in names and heads:
            raise click.UsageError(f"--spec-type takes either {NAME} or {HEADS}")
        if NAME in names and not self.names_model:
            raise click.UsageError(f"--spec-type {NAME} needs --model-draft")
        if exact and self.names_model and not heads:
            raise click.UsageError("--exact works with n-gram drafters only: drop --model-draft")
        others = [name for name in names if name not in (NAME, HEADS)]
        drafts = self.n_gram_drafts(others or (NO_DRAFTS,))
        second = self.second(slots, heads=heads, longest=self.draft_max, shortest=drafts.min_draft)
        return replace(drafts, second=second)
