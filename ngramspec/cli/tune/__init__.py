"""`ngramspec tune`: find the drafter and sizes that suit your own requests."""

from ngramspec.cli.tune.command import tune

__all__ = ["tune"]
