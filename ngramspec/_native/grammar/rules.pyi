from typing import final

import numpy.typing as npt
from typing_extensions import Self

@final
class Rules:
    def __new__(
        cls,
        kinds: npt.ArrayLike,
        values: npt.ArrayLike,
        rule_starts: npt.ArrayLike,
        starts: npt.ArrayLike,
        node_edges: npt.ArrayLike,
        edges: npt.ArrayLike,
    ) -> Self: ...
    @property
    def num_elements(self) -> int: ...
