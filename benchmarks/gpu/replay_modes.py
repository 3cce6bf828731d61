"""Modes: what is compared, as "DRAFTER:POLICY" or "none"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ngramspec import create_drafter
from ngramspec.engine.policy import make_policy
from ngramspec.errors import InputError

PLAIN = "none"
DEFAULT = (
    PLAIN,
    "suffix:auto",
    "suffix:gate",
    "suffix:fixed-4",
    "suffix:fixed-8",
    "suffix:fixed-16",
    "ngram-mod,ngram-cache:auto",
    "ngram-simple:auto",
)
SOURCE = "ngram"  # what a policy calls the drafter


@dataclass(frozen=True)
class Mode:
    """A drafter and a policy.

    names: as create_drafter takes them, "" = no drafts.
    policy: "auto", "gate", "fixed-N", or "tree-N": auto, with at most N tokens at one depth.
    """

    names: str
    policy: str = ""

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return f"{self.names}:{self.policy}" if self.names else PLAIN

    def longest(self, max_draft: int) -> int:
        """Return the longest draft of a policy that takes any."""
        kind, _, number = self.policy.partition("-")
        return min(int(number), max_draft) if kind == "fixed" else max_draft

    @property
    def tree_width(self) -> int:
        """Return the most tokens of a draft at one depth, 0 = drafts are chains."""
        kind, _, number = self.policy.partition("-")
        return int(number) if kind == "tree" else 0

    def make_policy(self, max_draft: int) -> Any:
        """Return a fresh policy for an engine or a drafter, None without drafts."""
        if not self.names:
            return None
        kind = self.policy.partition("-")[0]
        return make_policy("auto" if kind == "tree" else kind, self.longest(max_draft))

    def make_drafter(self, slots: int, policy: Any) -> Any:
        """Return a fresh drafter, None without drafts; a policy that weighs cuts its drafts."""
        if not self.names:
            return None
        return create_drafter(self.names, slots=slots, policy=policy if policy.weighs else None)


def parse_mode(text: str) -> Mode:
    """Return the mode that a text names.

    Raises:
        InputError: It is not "none" or "DRAFTER:POLICY", or there is no such drafter or policy.
    """
    if text == PLAIN:
        return Mode("")
    names, _, policy = text.partition(":")
    kind, _, number = policy.partition("-")
    numbered = kind in ("fixed", "tree")
    if not (numbered or kind in ("auto", "gate")) or numbered != number.isdigit():
        raise InputError(f"{text!r}: expected none, or DRAFTER:auto, :gate, :fixed-N or :tree-N")
    if kind == "tree" and not int(number):
        raise InputError(f"{text!r}: N must be 1 or more")
    create_drafter(names)  # says what is wrong with it
    return Mode(names, policy)


def parse_modes(texts: list[str]) -> list[Mode]:
    """Return the modes, plain decoding first: all others are compared with it."""
    modes = [parse_mode(text) for text in (PLAIN, *texts)]
    return list(dict.fromkeys(modes))
