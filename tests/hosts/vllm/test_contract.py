"""What the adapter relies on, read in vLLM's sources: a release that changes it fails by name.

VLLM_SOURCES names a folder with an unpacked wheel:
    pip download --no-deps vllm==0.33.0 && unzip -q vllm-*.whl '*.py' -d vllm-sources
An installed vllm serves as well. Nothing is imported here.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT
from helpers.vllm_engine import SOURCES, sources
from ngramspec.hosts.vllm import plugin
from ngramspec.hosts.vllm.settings import SUFFIX_DEFAULTS, SUFFIX_PREFIX

FOLDER = sources()
pytestmark = pytest.mark.skipif(
    FOLDER is None or not (FOLDER / "vllm").is_dir(),
    reason=f"no sources of vllm: let {SOURCES} name an unpacked wheel",
)
RUNNER = "v1/worker/gpu_model_runner.py"


@lru_cache(maxsize=32)
def tree(path: str) -> ast.Module:
    file = Path(FOLDER or "") / "vllm" / path
    assert file.is_file(), f"vllm/{path} is gone"
    return ast.parse(file.read_text())


def find(path: str, name: str) -> Any:
    """The class or function of a dotted name."""
    node: Any = tree(path)
    for part in name.split("."):
        nodes = [
            one
            for one in ast.walk(node)
            if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and one.name == part
        ]
        assert nodes, f"vllm/{path} has no {name}"
        node = nodes[0]
    return node


def parameters(path: str, name: str) -> list[str]:
    arguments = find(path, name).args
    return [one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def calls(node: ast.AST) -> list[str]:
    return [ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Call)]


def branch(function: Any, method: str) -> Any:
    """The body of `if ...method == "...":` in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and f".method == '{method}'" in ast.unparse(node.test):
            return ast.Module(node.body, [])
    raise AssertionError(f"{function.name} of vLLM has no branch for method {method!r}")


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("v1/spec_decode/custom_class_proposer.py", "create_custom_proposer", ["vllm_config"]),
        (
            "v1/spec_decode/suffix_decoding.py",
            "SuffixDecodingProposer.__init__",
            ["self", *plugin.INIT],
        ),
        (
            "v1/spec_decode/suffix_decoding.py",
            "SuffixDecodingProposer.propose",
            ["self", *plugin.PROPOSE],
        ),
        ("v1/worker/gpu_input_batch.py", "InputBatch.add_request", ["self", *plugin.ADD]),
        ("v1/worker/gpu_input_batch.py", "InputBatch.condense", ["self"]),
        ("v1/worker/gpu_input_batch.py", "InputBatch.swap_states", ["self", "i1", "i2"]),
        ("plugins/__init__.py", "load_general_plugins", []),
    ],
)
def test_a_signature_is_as_it_was(path: str, name: str, expected: list[str]) -> None:
    names = parameters(path, name)
    assert names == expected, f"vLLM changed {name}: it takes {names} instead of {expected}"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            "custom_class",
            "propose(sampled_token_ids, self.input_batch.num_tokens_no_spec, "
            "self.input_batch.token_ids_cpu, slot_mappings=slot_mappings)",
        ),
        (
            "suffix",
            "propose(num_spec_tokens_to_schedule, self.input_batch, sampled_token_ids, "
            "slot_mappings=slot_mappings)",
        ),
    ],
)
def test_the_runner_calls_a_proposer_as_it_did(method: str, expected: str) -> None:
    function = find(RUNNER, "GPUModelRunner.propose_draft_token_ids")
    lines = [one for one in calls(branch(function, method)) if ".propose(" in one]
    assert any(one.endswith(expected) for one in lines), (
        f"vLLM changed its call of a {method} proposer: {lines} instead of .{expected}"
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("custom_class", "create_custom_proposer(self.vllm_config)"),
        ("suffix", "SuffixDecodingProposer(self.vllm_config)"),
    ],
)
def test_the_runner_makes_a_proposer_as_it_did(method: str, expected: str) -> None:
    lines = calls(branch(find(RUNNER, "GPUModelRunner.__init__"), method))
    assert expected in lines, f"vLLM changed how it makes a {method} proposer: {lines}"


def test_a_class_is_made_from_the_configuration_alone() -> None:
    loader = find("v1/spec_decode/custom_class_proposer.py", "create_custom_proposer")
    assert "user_class(vllm_config)" in calls(loader), "vLLM changed what it gives a custom class"


def test_the_runner_checks_the_suffix_proposer_by_the_name_that_is_replaced() -> None:
    body = branch(find(RUNNER, "GPUModelRunner.propose_draft_token_ids"), "suffix")
    assert "isinstance(self.drafter, SuffixDecodingProposer)" in calls(body)
    imported = [
        node.module
        for node in tree(RUNNER).body
        if isinstance(node, ast.ImportFrom) and plugin.NAME in [one.name for one in node.names]
    ]
    assert imported == [plugin.HOME], f"vLLM takes {plugin.NAME} from {imported}"


def test_the_emitted_tokens_are_in_the_table_before_the_proposer_is_asked() -> None:
    source = ast.unparse(find(RUNNER, "GPUModelRunner._bookkeeping_sync"))
    for line in (
        "self.input_batch.token_ids_cpu[req_idx, start_idx:end_idx] = sampled_ids",
        "self.input_batch.num_tokens_no_spec[req_idx] = end_idx",
    ):
        assert line in source, f"vLLM changed its bookkeeping: no {line}"


def test_a_batch_has_the_fields_that_are_read() -> None:
    init = ast.unparse(find("v1/worker/gpu_input_batch.py", "InputBatch.__init__"))
    for name in plugin.BATCH_FIELDS:
        assert f"self.{name}" in init, f"vLLM's InputBatch has no {name}"
    find("v1/worker/gpu_input_batch.py", "InputBatch.req_ids")


@pytest.mark.parametrize(
    ("path", "owner", "names"),
    [
        ("config/vllm.py", "VllmConfig", ["additional_config", "speculative_config"]),
        ("config/vllm.py", "VllmConfig", ["model_config", "scheduler_config", "parallel_config"]),
        (
            "config/speculative.py",
            "SpeculativeConfig",
            [
                "num_speculative_tokens",
                "model",
                *(SUFFIX_PREFIX + name for name in SUFFIX_DEFAULTS),
            ],
        ),
        ("config/scheduler.py", "SchedulerConfig", ["max_num_seqs"]),
        ("config/model.py", "ModelConfig", ["max_model_len", "tokenizer", "get_vocab_size"]),
        (
            "config/parallel.py",
            "ParallelConfig",
            [
                "rank",
                "world_size",
                "tensor_parallel_size",
                "prefill_context_parallel_size",
                "distributed_executor_backend",
            ],
        ),
        ("sampling_params.py", "SamplingParams", ["extra_args"]),
    ],
)
def test_the_configuration_has_what_is_read(path: str, owner: str, names: list[str]) -> None:
    body = find(path, owner).body
    present = {ast.unparse(one.target) for one in body if isinstance(one, ast.AnnAssign)}
    present |= {one.name for one in body if isinstance(one, ast.FunctionDef)}
    missing = [name for name in names if name not in present]
    assert not missing, f"vLLM's {owner} has no {', '.join(missing)}"


def test_settings_of_the_suffix_method_have_their_defaults() -> None:
    body = find("config/speculative.py", "SpeculativeConfig").body
    defaults = {
        ast.unparse(one.target).removeprefix(SUFFIX_PREFIX): ast.literal_eval(one.value)
        for one in body
        if isinstance(one, ast.AnnAssign) and one.value and SUFFIX_PREFIX in ast.unparse(one.target)
    }
    assert defaults == SUFFIX_DEFAULTS, f"vLLM's settings of its suffix method are {defaults}"


def test_the_drafts_of_the_first_rank_of_the_last_stage_are_used() -> None:
    function = find("v1/executor/multiproc_executor.py", "_get_output_rank")
    statement = ast.unparse(function.body[-1])
    expected = (
        "return self.world_size - self.parallel_config.tensor_parallel_size * "
        "self.parallel_config.prefill_context_parallel_size"
    )
    assert statement == expected, f"vLLM changed whose drafts it takes: {statement}"
    source = ast.unparse(find("v1/executor/multiproc_executor.py", "take_draft_token_ids"))
    assert "unique_reply_rank=self.output_rank" in source


def test_the_methods_have_their_names() -> None:
    source = ast.unparse(tree("config/speculative.py"))
    for name in ("custom_class", "suffix"):
        assert f"'{name}'" in source, f"vLLM has no speculative method {name}"
    assert f"import LazyLoader, {plugin.CHECK}" in source, f"vLLM checks by no {plugin.CHECK}"


def test_plugins_are_found_by_the_group_that_is_declared() -> None:
    assert "'vllm.general_plugins'" in ast.unparse(tree("plugins/__init__.py"))
    project = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]' in project
    assert 'ngramspec = "ngramspec.hosts.vllm.plugin:register"' in project
