"""Verification for any engine: which drafted tokens a target's outputs confirm.

Pure functions over a batch of padded drafts, as Drafter.propose_batch writes them: numpy arrays, or
torch tensors on their device. Stateless, so thread-safe. Temperature, top-k, top-p, penalties and
grammars remain the engine's job: it passes logits, probabilities or chosen ids after applying them.
"""

from ngramspec.verify.batch import Verification
from ngramspec.verify.greedy import TreeVerification, verify_greedy, verify_tree
from ngramspec.verify.sampled import position_uniforms, verify_sampled, verify_tree_sampled

__all__ = [
    "TreeVerification",
    "Verification",
    "position_uniforms",
    "verify_greedy",
    "verify_sampled",
    "verify_tree",
    "verify_tree_sampled",
]
