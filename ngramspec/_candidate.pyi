from typing import final

from typing_extensions import Self

from ngramspec._pass_costs import PassCosts

@final
class Chooser:
    def __new__(cls, max_draft: int, costs: PassCosts) -> Self: ...
