"""What hosts must refuse that show drafters tokens only, never the logits they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.drafting.names import FROM_LOGITS
from ngramspec.errors import InputError


def refuse_untaught(host: str, params: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise if a drafter would draft nothing because the host never shows logits.

    Args:
        host: Its name, for the message.
        params: Parameters of each drafter, by name. A `pool` file may hold what was learnt
            elsewhere, so with one there are drafts.

    Raises:
        InputError: A drafter learns from logits and has no such file.
    """
    for name, own in params.items():
        if name in FROM_LOGITS and own.get("pool") is None:
            raise InputError(
                f"{name} learns from the target's logits, which {host} never shows a drafter, so "
                f"it would draft nothing: leave it out"
            )
