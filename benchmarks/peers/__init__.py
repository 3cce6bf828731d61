"""Other projects' drafters on the same tokens as ours.

This file, players.py and what they import need only numpy and the peer, so that an interpreter
without ngramspec's own dependencies can run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngramspec.lab.replay.walk import Subject
from peers import players

ORACLE = "oracle"
ORACLE_OF = "arctic-f4p0"


class PeerMissing(Exception):
    """The peer is not installed; the message says what is missing."""


@dataclass(frozen=True)
class Peer:
    """A drafter of another project with fixed settings.

    name: what tables call it.
    about: project and settings in words.
    opener: the function of players.py that opens it; "" = a program, see runs.py.
    install: how to get it.
    settings: what its opener takes.
    """

    name: str
    about: str
    opener: str
    install: str
    settings: Mapping[str, Any] = field(default_factory=dict)


_ARCTIC = (
    "pip install torch==2.13.0 numpy nanobind==2.9.2 cmake ninja setuptools wheel protobuf==5.29.6 "
    "grpcio-tools && pip install --no-build-isolation --no-deps arctic-inference==0.3.0, "
    "in an activated environment"
)
_VLLM = "pip install torch numba && pip download --no-deps vllm==0.33.0, then --vllm-wheel FILE"
_TREE = "ArcticInference 0.3.0 suffix cache, at most 64 tokens, global tree on"


def _arctic(name: str, factor: float, probability: float) -> Peer:
    about = f"{_TREE}; factor {factor:g}, min prob {probability:g}"
    settings = {"max_spec_factor": factor, "min_token_prob": probability}
    return Peer(name, about, "open_arctic", _ARCTIC, settings)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "lcp-pld(2,10)",
            "llama-cpp-python LlamaPromptLookupDecoding: n-gram 2, 10 tokens",
            "open_prompt_lookup",
            "pip install llama-cpp-python",
            {"max_ngram_size": 2, "num_pred_tokens": 10},
        ),
        Peer(
            "hf-pld(3,10)",
            "transformers PromptLookupCandidateGenerator: n-gram 3, 10 tokens",
            "open_transformers_lookup",
            "pip install torch transformers==5.23.0",
            {"max_matching_ngram_size": 3, "num_output_tokens": 10},
        ),
        Peer(
            "vllm-ngram(2-5,k5)",
            "vLLM NgramProposer (numba): n-grams 2 to 5, 5 tokens",
            "open_vllm_ngram",
            _VLLM,
            {"prompt_lookup_min": 2, "prompt_lookup_max": 5, "num_speculative_tokens": 5},
        ),
        _arctic("arctic-default", 1.0, 0.1),
        _arctic("arctic-f2", 2.0, 0.1),
        _arctic(ORACLE_OF, 4.0, 0.0),
        _arctic("arctic-p.3f4", 4.0, 0.3),
        *(
            Peer(
                f"llamacpp-{kind}",
                f"llama.cpp's compiled {kind} at its defaults, one slot",
                "",
                "compile a replay program, then --llamacpp PROGRAM",
                {"kind": kind},
            )
            for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
        ),
    )
}
ABOUT_ORACLE = f"the drafts of {ORACLE_OF}, each cut at its last right token"


def open_peer(peer: Peer, *, vllm_wheel: Path | None = None) -> Subject:
    """Return a peer that this interpreter can import.

    Args:
        peer: Of PEERS, with an opener.
        vllm_wheel: vLLM's wheel, or its ngram_proposer.py.

    Raises:
        PeerMissing: It, or what it needs, is not installed.
    """
    settings = dict(peer.settings)
    if peer.opener == "open_vllm_ngram":
        settings["wheel"] = vllm_wheel
    try:
        subject: Subject = getattr(players, peer.opener)(peer.name, **settings)
    except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
        raise PeerMissing(str(error)) from error
    return subject
