from typing import final

from typing_extensions import Self

from ngramspec._native.engine.decode import Rows
from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.plan import Plan
from ngramspec._native.engine.slot import Slot
from ngramspec._native.policy.auto import AutoPolicy

@final
class Verifier:
    def __new__(cls, plan: Plan, rows: Rows, policy: AutoPolicy, stats: EngineStats) -> Self: ...
    def verify(self) -> list[Slot]: ...
