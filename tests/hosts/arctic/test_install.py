"""install(): engines that import arctic_inference get ours."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ngramspec.errors import InputError
from ngramspec.hosts.arctic.cache import SuffixDecodingCache
from ngramspec.hosts.arctic.install import MODULE, PACKAGE, install, plugin, uninstall

CAPACITY = 224 * 40  # tokens of 40 blocks


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No arctic_inference, whatever is installed here."""
    names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    places = [place for place in sys.path if not (Path(place) / PACKAGE).exists()]
    monkeypatch.setattr(sys, "path", places)
    yield
    uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == PACKAGE]


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package of that name, with a class of its own."""
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").write_text("other = 1\n")
    (tmp_path / PACKAGE / "suffix_decoding.py").write_text("SuffixDecodingCache = 'theirs'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    uninstall()
    assert cache_class() == "theirs"
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def cache_class() -> object:
    return importlib.import_module(MODULE).SuffixDecodingCache


def test_the_module_is_found_as_engines_look_for_it(absent: None) -> None:
    assert importlib.util.find_spec(PACKAGE) is None
    assert install()
    assert importlib.util.find_spec(PACKAGE) is not None
    assert importlib.util.find_spec(MODULE) is not None
    assert importlib.import_module(PACKAGE).suffix_decoding is sys.modules[MODULE]
    from arctic_inference.suffix_decoding import (  # type: ignore[import-not-found,unused-ignore]
        SuffixDecodingCache as Found,
    )

    assert Found is SuffixDecodingCache
    uninstall()
    assert importlib.util.find_spec(PACKAGE) is None


def test_settings_are_those_of_the_last_call(absent: None) -> None:
    assert install(capacity=CAPACITY)
    cache = importlib.import_module(MODULE).SuffixDecodingCache(max_tree_depth=24)
    assert isinstance(cache, SuffixDecodingCache)
    assert (cache.max_tree_depth, cache.pool.capacity) == (24, CAPACITY)
    install(pool_prompts=True)
    assert importlib.import_module(MODULE).SuffixDecodingCache().pool.capacity > CAPACITY
    with pytest.raises(InputError, match=r"unknown setting 'capacty'.*capacity"):
        install(capacty=3)
    assert cache_class() is not None


def test_the_real_package_stays_unless_it_is_to_be_replaced(present: None) -> None:
    assert not install()
    assert cache_class() == "theirs"
    assert install(replace=True)
    assert cache_class() is SuffixDecodingCache
    package = importlib.import_module(PACKAGE)
    assert package.other == 1
    assert package.suffix_decoding is sys.modules[MODULE]
    assert install()  # only settings change


def test_the_real_package_may_not_be_loaded_yet(present: None) -> None:
    assert install(replace=True)
    assert PACKAGE not in sys.modules
    assert cache_class() is SuffixDecodingCache
    assert importlib.import_module(PACKAGE).other == 1


@pytest.mark.parametrize("text", ["", "0"])
def test_the_plugin_does_nothing_unless_it_is_asked(
    absent: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("NGRAMSPEC_ARCTIC", text)
    plugin()
    assert MODULE not in sys.modules


def test_the_plugin_replaces_the_real_package(
    present: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("1", f'{{"capacity": {CAPACITY}}}'):
        monkeypatch.setenv("NGRAMSPEC_ARCTIC", text)
        plugin()
        cache = importlib.import_module(MODULE).SuffixDecodingCache()
        assert (cache.pool.capacity == CAPACITY) == (text != "1")


@pytest.mark.parametrize("text", ["yes", "[1]", '{"capacty": 1}', "{"])
def test_the_plugin_logs_what_is_wrong(
    absent: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setenv("NGRAMSPEC_ARCTIC", text)
    with caplog.at_level(logging.ERROR, "ngramspec"):
        plugin()
    assert len(caplog.records) == 1
    assert "NGRAMSPEC_ARCTIC" in caplog.text
    assert MODULE not in sys.modules
