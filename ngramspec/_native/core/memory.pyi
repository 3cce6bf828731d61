from typing_extensions import disjoint_base

@disjoint_base
class Owner:
    def __new__(cls) -> Owner: ...
