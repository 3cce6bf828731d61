"""Verification for whoever has a forward pass: which drafted tokens a target's outputs confirm.

Pure functions over a batch of padded drafts, as Drafter.propose_batch writes them; numpy arrays and
torch tensors alike, the latter on their device. No state, so safe in threads. Temperature, top-k,
top-p, penalties and grammars stay the engine's: it hands over logits, probabilities or chosen ids
that they were applied to.
"""

from ngramspec.verify.batch import Verification
from ngramspec.verify.greedy import verify_greedy
from ngramspec.verify.sampled import verify_sampled
from ngramspec.verify.trees import TreeVerification, verify_tree
from ngramspec.verify.uniforms import position_uniforms

__all__ = [
    "TreeVerification",
    "Verification",
    "position_uniforms",
    "verify_greedy",
    "verify_sampled",
    "verify_tree",
]
