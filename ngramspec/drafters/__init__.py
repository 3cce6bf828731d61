"""Making drafters: names, parameters and their checks. The drafting itself is native."""

from ngramspec.drafters.create import create_drafter
from ngramspec.drafters.names import DRAFTER_NAMES

__all__ = ["DRAFTER_NAMES", "create_drafter"]
