"""Log-probabilities of a model that rules tokens out, as JSON has no infinity."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any, cast

from ngramspec.engine import TokenLogprob
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.logprobs import LogprobFormat


def test_minus_infinity_is_a_number_in_every_format() -> None:
    served = SimpleNamespace(model=SimpleNamespace(piece=lambda token, special: b"%d" % token))
    probs = [TokenLogprob(3, -math.inf, ((1, -0.5), (3, -math.inf)))]
    chosen = LogprobFormat(cast(ServedModel, served))
    formats: list[Any] = [chosen.chat(probs), chosen.native(probs), chosen.completion(probs, 0)]
    for body in formats:
        assert json.dumps(body, allow_nan=False).count("-9999.0") == 2
        assert "-0.5" in json.dumps(body)
