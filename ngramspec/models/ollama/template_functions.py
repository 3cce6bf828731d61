"""The functions that Ollama adds to those of Go's templates."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from ngramspec.text.gotemplate import Budget, Record, TemplateFunction, json_text

_TYPESCRIPT = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_TYPESCRIPT |= {"array": "any[]", "object": "Record<string, any>", "null": "null"}


def dates(today: datetime.date | None = None) -> dict[str, TemplateFunction]:
    """Return the functions that depend on the day. today: Default: that of the local clock."""

    def date(days: int) -> str:
        return ((today or datetime.date.today()) - datetime.timedelta(days)).isoformat()

    return {
        "currentDate": TemplateFunction(lambda values, budget: date(0), 0),
        "yesterdayDate": TemplateFunction(lambda values, budget: date(1), 0),
    }


def typescript_type(value: object) -> str:
    """Return the TypeScript type of a property of a tool; "any" for everything else."""
    if not isinstance(value, Record):
        return "any"
    choices = value.fields.get("AnyOf")
    if isinstance(choices, list) and choices:
        return " | ".join(map(typescript_type, choices))
    types = value.fields.get("Type")
    several = types if isinstance(types, list) else [types]
    return " | ".join(_TYPESCRIPT.get(str(one), "any") for one in several) or "any"


def _json(values: Sequence[object], budget: Budget) -> str:
    return budget.text(json_text(values[0]))


def _typescript(values: Sequence[object], budget: Budget) -> str:
    return typescript_type(values[0])


FUNCTIONS: Mapping[str, TemplateFunction] = {
    **dates(),
    "json": TemplateFunction(_json, 1, 1),
    "toJson": TemplateFunction(_json, 1, 1),
    "toTypeScriptType": TemplateFunction(_typescript, 1, 1),
}
