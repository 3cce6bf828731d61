"""Making drafters: names, parameters and their checks. The drafting itself is native."""

from ngramspec.drafting.create import create_drafter
from ngramspec.drafting.names import DRAFTER_NAMES

__all__ = ["DRAFTER_NAMES", "create_drafter"]
