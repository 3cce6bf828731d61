from typing import final

from typing_extensions import Self

from ngramspec._figures import EngineStats
from ngramspec._plan import Plan
from ngramspec._rows import Rows
from ngramspec._slot import Slot

@final
class Verifier:
    def __new__(cls, plan: Plan, rows: Rows, policy: object, stats: EngineStats) -> Self: ...
    def verify(self) -> list[Slot]: ...
