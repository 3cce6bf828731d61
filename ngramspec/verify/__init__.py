"""Verification for any engine: which drafted tokens a target's outputs confirm.

Pure functions over a batch of padded drafts, as Drafter.propose_batch writes them: numpy arrays, or
torch tensors on their device. Stateless, so thread-safe. Temperature, top-k, top-p, penalties and
grammars remain the engine's job: it passes logits, probabilities or chosen ids after applying them.
"""

from ngramspec.verify.batch import Verification
from ngramspec.verify.greedy import verify_greedy
from ngramspec.verify.sampled import verify_sampled
from ngramspec.verify.sampled_trees import verify_tree_sampled
from ngramspec.verify.trees import TreeVerification, verify_tree
from ngramspec.verify.uniforms import position_uniforms

__all__ = [
    "TreeVerification",
    "Verification",
    "position_uniforms",
    "verify_greedy",
    "verify_sampled",
    "verify_tree",
    "verify_tree_sampled",
]
