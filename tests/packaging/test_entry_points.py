"""Commands and plugins of pyproject.toml lead to functions that are there, without their hosts."""

from __future__ import annotations

import pkgutil
import sys

import pytest

from helpers.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS: dict[str, dict[str, str]] = {"scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
TARGETS = sorted({target for points in GROUPS.values() for target in points.values()})


@pytest.mark.parametrize("target", TARGETS)
def test_an_entry_point_leads_to_a_function(target: str) -> None:
    assert callable(pkgutil.resolve_name(target))
