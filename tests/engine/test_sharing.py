"""One pool for all slots: a second user profits from the first, in the namespace and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.workload import prompt
from ngramspec.engine import AutoPolicy, Engine, Request, Sampling, Speculation
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

# Keys longer than what two questions share by themselves: a draft needs an answer seen before.
MOD = {"n_match": 12, "n_min": 2, "n_max": 32, "capacity": 1 << 16}
DOCUMENTS = (1, 4, 7)  # questions for new names: what the first answer says is not in the prompt


def ask(model: Any, target: Any, engine: Engine, number: int, namespace: str) -> Any:
    """Ask about a document; the prompt cache is left out, so only the pool is shared."""
    answer = engine.generate(
        [
            Request(
                prompt_ids=model.tokenize(prompt(number), parse_special=True),
                max_tokens=50,
                sampling=Sampling(temperature=0.0),
                speculation=Speculation(namespace=namespace),
                cache_prompt=False,
            )
        ]
    )[0]
    return answer.timings


def accepted(model: Any, *namespaces: str, pool: Path | None = None) -> list[int]:
    """Return accepted tokens of users who ask the same after one another, each in a namespace."""
    params = {"ngram-mod": {**MOD, **({"pool": pool} if pool else {})}}
    with LlamaTarget(model, slots=2, context_size=512, threads=1) as target:
        engine = Engine(target, "ngram-mod", slots=2, params=params, policy=AutoPolicy(fixed=32))
        counts = [
            sum(ask(model, target, engine, n, namespace).num_accepted_tokens for n in DOCUMENTS)
            for namespace in namespaces
        ]
        engine.close()
    return counts


def test_a_second_user_gets_drafts_that_the_first_ones_request_taught(model: LlamaModel) -> None:
    first, shared, separate = accepted(model, "", "", "another tenant")
    assert shared > 1.1 * first
    assert abs(separate - first) < 0.1 * (shared - first)


def test_a_saved_pool_teaches_after_a_restart(model: LlamaModel, tmp_path: Path) -> None:
    pool = tmp_path / "pool.ngp"
    (first,), (again,) = accepted(model, "", pool=pool), accepted(model, "", pool=pool)
    assert pool.exists()
    assert again > first
