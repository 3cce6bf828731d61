"""Options of synthetic acceptance, of `bench e2e` and `bench calibrate`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from ngramspec.cli.options import flag


@dataclass
class SyntheticOptions:
    """How often drafts are right, whatever the model says."""

    section = "Synthetic acceptance"
    # fmt: off
    synthetic: str = flag("--synthetic", "Accept drafts by dice: how often they are right up to "
        "the first, second, ... token, such as 0.8,0.6,0.4; further tokens are wrong. Texts mean "
        "nothing then.", default="", metavar="RATES")
    synthetic_length: float | None = flag("--synthetic-length", "The same by the tokens per pass "
        "that the longest drafts bring on average, each token as likely as the others.", low=1.0)

    @property
    def is_synthetic(self) -> bool:
        """Return whether dice decide."""
        return bool(self.synthetic) or self.synthetic_length is not None

    def rates(self, longest: int) -> tuple[float, ...]:
        """Return the rates by place in a draft, () if none are asked for.

        Args:
            longest: Tokens of the longest draft.

        Raises:
            click.UsageError: The options cannot be used.
        """
        from ngramspec.errors import InputError
        from ngramspec.lab.e2e.synthetic import rates_of

        if self.synthetic and self.synthetic_length is not None:
            raise click.UsageError("give either --synthetic or --synthetic-length")
        try:
            if self.synthetic_length is not None:
                return rates_of(self.synthetic_length, longest)
            rates = tuple(float(one) for one in self.synthetic.split(",")) if self.synthetic else ()
        except InputError as error:
            raise click.UsageError(f"--synthetic-length: {error}") from error
        except ValueError as error:
            raise click.UsageError(f"--synthetic: expected numbers with commas: {error}") from error
        if not all(0.0 <= b <= a <= 1.0 for a, b in zip((1.0, *rates), rates, strict=False)):
            raise click.UsageError(
                "--synthetic: rates must be in 0..1 and none larger than the one before: a draft "
                f"is right up to its second token only where its first one is, got {self.synthetic}"
            )
        return rates
