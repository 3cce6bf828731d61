"""make_plan: what goes to GPUs and how long a context is, from facts of machines and models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.llamacpp.fit.plan import (
    ALL,
    FitPlan,
    FitWish,
    Need,
    Space,
    Weights,
    lacking,
    make_plan,
    use_of,
)

GIB, MIB = 1 << 30, 1 << 20
# As a Llama 3 8B in Q4_K_M has them: 128 KiB of cache per token.
LLAMA_8B = Weights(layers=(132 * MIB,) * 32, host=282 * MIB, output=411 * MIB)
TRAINED = 131072


def need_8b(tokens: int) -> Need:
    return Need(context=tokens * 128 * 1024, host_compute=16 * MIB, gpu_compute=258 * MIB + tokens)


def plan_8b(space: Space, **wish: object) -> FitPlan:
    full = FitWish(**{"tokens": TRAINED, **wish})  # type: ignore[arg-type]
    return make_plan(space, LLAMA_8B, need_8b, full)


@pytest.mark.parametrize(
    ("space", "wish", "layers", "tokens"),
    [
        # A server with 64 GiB: all of the context.
        (Space(host=60 * GIB), {}, 0, TRAINED),
        # A laptop with 12 GiB free: what is left beside 4.8 GiB of weights and a GiB.
        (Space(host=12 * GIB), {}, 0, 48128),
        # A small container: the least context, whatever it lacks.
        (Space(host=2 * GIB), {}, 0, 4096),
        (Space(host=2 * GIB), {"least": 512}, 0, 512),
        # An 80 GiB GPU takes all, and 24 GiB as well; 16 GiB cut the context.
        (Space(host=60 * GIB, gpus=(79 * GIB,)), {"layers": None}, ALL, TRAINED),
        (Space(host=60 * GIB, gpus=(23 * GIB,)), {"layers": None}, ALL, TRAINED),
        (Space(host=60 * GIB, gpus=(15 * GIB,)), {"layers": None}, ALL, 75520),
        # 4 GiB hold some of the layers beside the least context.
        (Space(host=60 * GIB, gpus=(4 * GIB,)), {"layers": None}, 17, 4608),
        # None where even one does not fit.
        (Space(host=60 * GIB, gpus=(512 * MIB,)), {"layers": None}, 0, TRAINED),
        # Asked for: kept, and the context is what fits beside it.
        (Space(host=60 * GIB, gpus=(8 * GIB,)), {"layers": 20}, 20, 53760),
        (Space(host=60 * GIB, gpus=(8 * GIB,)), {"layers": 0}, 0, TRAINED),
        (Space(host=12 * GIB), {"tokens": 100000, "fixed": True}, 0, 100000),
        # Two GPUs hold together what none holds alone, less a layer for what cannot be divided.
        (Space(host=60 * GIB, gpus=(8 * GIB, 8 * GIB)), {"layers": None}, ALL, 74240),
        # Apple: the GPU's memory is the host's.
        (Space(host=12 * GIB, gpus=(11 * GIB,), shared=True), {"layers": None}, ALL, 42752),
        # The cache stays on the host.
        (Space(host=60 * GIB, gpus=(7 * GIB,)), {"layers": None, "kept_on_host": True}, ALL,
         TRAINED),
        # Margins: of the host without GPUs, of each GPU with them.
        (Space(host=12 * GIB), {"margins": (0,)}, 0, 56320),
        (Space(host=12 * GIB), {"margins": (4 * GIB,)}, 0, 23552),
        (Space(host=60 * GIB, gpus=(15 * GIB,)), {"layers": None, "margins": (GIB // 2,)}, ALL,
         79616),
    ],
)  # fmt: skip
def test_machines(space: Space, wish: dict[str, object], layers: int, tokens: int) -> None:
    plan = plan_8b(space, **wish)
    assert plan.layers == layers
    assert plan.tokens == pytest.approx(tokens, abs=256)
    assert plan.tokens == TRAINED or wish.get("fixed") or plan.tokens % 256 == 0


def test_output_goes_first_and_tied_embeddings_are_copied() -> None:
    weights = Weights(layers=(10, 20, 30), host=5, output=7, tied=4)
    assert [weights.on_gpus(n) for n in (0, 1, 2, 3, 4, 99, -1)] == [0, 11, 41, 61, 71, 71, 71]
    assert weights.total == 72
    need = Need(context=30, host_compute=1, gpu_compute=2, outputs=3)
    without = use_of(weights, need, 0)
    assert (without.host_weights, without.host, without.gpus) == (72, 36, 0)
    some = use_of(weights, need, 2)
    assert (some.host_weights, some.host, some.gpus) == (35, 24, 53)
    assert use_of(weights, need, -1, kept_on_host=True).gpus == 73


@given(
    host=st.integers(0, 1 << 40),
    gpus=st.lists(st.integers(0, 1 << 40), max_size=3),
    per_token=st.integers(1, 1 << 20),
    bend=st.integers(0, 1 << 14),
    most=st.integers(256, 1 << 20),
    layers=st.sampled_from([None, 0, 7, -1]),
)
def test_contexts_fit_and_longer_ones_do_not(
    host: int, gpus: list[int], per_token: int, bend: int, most: int, layers: int | None
) -> None:
    def measure(tokens: int) -> Need:  # not a line: what a decode needs has a step
        return Need(context=tokens * per_token, gpu_compute=(tokens // 4096) ** 2 * bend)

    space, weights = Space(host=host, gpus=tuple(gpus)), replace(LLAMA_8B, tied=0)
    wish = FitWish(tokens=most, layers=layers, least=512)
    plan = make_plan(space, weights, measure, wish)
    assert min(512, most) <= plan.tokens <= most
    assert lacking(space, plan.use, mapped=False) == 0 or plan.left < 0
    if plan.left < 0:
        assert plan.tokens == min(512, most)
    elif plan.tokens < most:
        longer = FitWish(tokens=plan.tokens + 256, fixed=True, layers=plan.layers)
        assert make_plan(space, weights, measure, longer).left < 0 or bend


def test_what_is_lacking_whatever_else_gives_way() -> None:
    use = use_of(LLAMA_8B, need_8b(8192), 0)
    weights, need = LLAMA_8B.total, need_8b(8192)
    rest = need.context + need.host_compute + need.gpu_compute
    assert lacking(Space(host=rest), use, mapped=True) == 0
    assert lacking(Space(host=rest), use, mapped=False) == weights
    assert lacking(Space(host=rest, swap=weights), use, mapped=False) == 0
    assert lacking(Space(host=rest - 5), use, mapped=True) == 5
    on_gpu = use_of(LLAMA_8B, need_8b(8192), ALL)
    assert lacking(Space(host=GIB, gpus=(on_gpu.gpus - 7,)), on_gpu, mapped=True) == 7
    shared = Space(host=on_gpu.host + on_gpu.gpus - 9, gpus=(1 << 40,), shared=True)
    assert lacking(shared, on_gpu, mapped=True) == 9
