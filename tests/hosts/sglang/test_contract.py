"""What the plugin relies on in SGLang: a release that has it otherwise is named, not broken."""

from __future__ import annotations

import pytest

from helpers.sglang_engine import sources
from ngramspec.hosts.sglang.corpus import Corpus
from ngramspec.hosts.sglang.plugin import (
    CONFIG,
    CORPUS,
    HOOKS,
    RUNNER,
    WORKER,
    differences,
)

# The parts of sglang 0.5.23 that are looked at, in few words.
FILES = {
    CORPUS: """
class NgramCorpus:
    def __init__(self, max_trie_depth=18, min_bfs_breadth=1): ...
    def _get_state_id(self, req_id): ...
    def batch_put(self, batch_tokens): ...
    def batch_get(self, req_ids, batch_tokens, total_lens): ...
    @property
    def remaining_token_budget(self): ...
    def debug_result(self, decoding_ids): ...
""",
    WORKER: f"""
from {CORPUS} import NgramCorpus
class NGRAMWorker(Base):
    def __init__(self):
        self.model_runner = target_worker.model_runner
        self.ngram_corpus = NgramCorpus(max_trie_depth=3, match_type="BFS")
    def clear_cache_pool(self):
        self.ngram_corpus.reset()
    def _prepare_draft_tokens(self, batch):
        for req in batch.reqs:
            req.rid, req.origin_input_ids_unpadded, req.output_ids
        return self.ngram_corpus.batch_get([], [], [])
""",
    HOOKS: """
class HookType(Enum):
    BEFORE = "before"
    REPLACE = "replace"
class HookRegistry:
    @classmethod
    def register(cls, target, hook, hook_type=1, *, source=None): ...
""",
    RUNNER: """
class ModelRunner:
    def __init__(self, model_config):
        self.model_config = model_config
""",
    CONFIG: """
class ModelConfig:
    def _derive(self):
        self.vocab_size = self.hf_text_config.vocab_size
""",
}


def test_the_installed_release_has_all_that_the_plugin_relies_on() -> None:
    folder = sources()
    changes = differences(
        lambda name: folder.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8"), Corpus
    )
    assert changes == [], "; ".join(changes)


@pytest.mark.parametrize(
    ("module", "old", "new", "message"),
    [
        (CORPUS, "class NgramCorpus", "class Other", "no class NgramCorpus"),
        (CORPUS, "total_lens)", "total_lens, more)", "batch_get takes self, req_ids, batch_t"),
        (CORPUS, "min_bfs_breadth=1", "depth=1", "__init__ takes self, max_trie_depth, depth"),
        (CORPUS, "def batch_put", "def put_all", "NgramCorpus.put_all is new"),
        (WORKER, "NGRAMWorker(", "NGramWorker(", "no class NGRAMWorker"),
        (WORKER, "import NgramCorpus", "import Other", "does not import NgramCorpus"),
        (WORKER, "match_type=", "rule=", "makes a NgramCorpus with rule"),
        (WORKER, ".reset()", ".clear()", "uses NgramCorpus.clear"),
        (WORKER, "_prepare_draft_tokens", "_draft", "no method NGRAMWorker._prepare_draft"),
        (WORKER, "self, batch)", "self, batch, more)", "takes other arguments than a batch"),
        (WORKER, "origin_input_ids_unpadded", "prompt", "does not use origin_input_ids_unpadded"),
        (HOOKS, "def register", "def add", "no HookRegistry.register"),
        (HOOKS, "cls, target", "cls, where, target", "register takes other arguments"),
        (HOOKS, "class HookRegistry", "class Hooks", "no HookRegistry.register"),
        (HOOKS, "BEFORE", "AHEAD", "no HookType.BEFORE"),
        (HOOKS, "class HookType", "class Kind", "no HookType.REPLACE"),
        (HOOKS, "class HookType", "class class", "invalid syntax"),
        (WORKER, "self.model_runner", "self.runner", "NGRAMWorker has no model_runner"),
        (RUNNER, "self.model_config", "self.config", "ModelRunner has no model_config"),
        (RUNNER, "class ModelRunner", "class Runner", "ModelRunner has no model_config"),
        (CONFIG, "self.vocab_size", "self.num_tokens", "ModelConfig has no vocab_size"),
    ],
)
def test_a_change_is_named(module: str, old: str, new: str, message: str) -> None:
    assert differences(FILES.__getitem__, Corpus) == []
    changed = {**FILES, module: FILES[module].replace(old, new)}
    changes = differences(changed.__getitem__, Corpus)
    assert any(line.startswith(f"{module}: ") and message in line for line in changes), changes


def test_a_missing_module_is_named() -> None:
    def read(name: str) -> str:
        if name == WORKER:
            raise FileNotFoundError("no such file: worker.py")
        return FILES[name]

    assert differences(read, Corpus) == [f"{WORKER}: no such file: worker.py"]
