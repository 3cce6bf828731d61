"""--api-key-file while the server runs: its keys change, and nothing that is wrong opens it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.fake_target import FakeTarget
from helpers.serving import wait_until
from ngramspec import HashPool
from ngramspec.cli.serve.keys import KeyWatch
from ngramspec.engine import Engine
from ngramspec.errors import InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server import ServedModel, ServerSettings, create_app

Spawn = Callable[..., Process]
# `ngramspec` that looks at its file of keys often, so that nobody waits for it.
LOOKING = """
from ngramspec.cli import main
from ngramspec.cli.serve import keys

keys.LOOK_SECONDS = 0.05
main()
"""
KEPT = "the API keys stay as they were: "


class Locked:
    """A server with a file of keys, which holds `one` at the start."""

    def __init__(self, spawn: Spawn, folder: Path, *arguments: str) -> None:
        self.path = folder / "keys"
        self.path.write_text("# of the first user\none\n")
        options = ("-np", "1", "-c", "512", "--api-key-file", str(self.path), *arguments)
        self.server = spawn(*options, program=("-c", LOOKING))
        self.client = httpx.Client(base_url=self.server.url(), timeout=60, verify=False)

    def status(self, key: str | None, path: str = "/v1/models") -> int:
        head = {} if key is None else {"authorization": f"Bearer {key}"}
        return self.client.get(path, headers=head).status_code

    def lets_in(self, *keys: str) -> bool:
        """Return whether these get in, and nobody without a key."""
        assert self.status(None) == 401
        return all(self.status(key) == 200 for key in keys)

    def says(self, text: str) -> None:
        """Wait until the log says that the keys were kept, and why."""
        wait_until(lambda: f"{KEPT}{text}" in self.server.text)


@pytest.fixture
def lock(spawn: Spawn, tmp_path: Path) -> Iterator[Callable[..., Locked]]:
    clients: list[httpx.Client] = []

    def lock(*arguments: str) -> Locked:
        locked = Locked(spawn, tmp_path, *arguments)
        clients.append(locked.client)
        return locked

    yield lock
    for client in clients:
        client.close()


def test_keys_change_with_their_file(lock: Callable[..., Locked]) -> None:
    locked = lock("--api-key", "always")
    assert locked.lets_in("one", "always")
    locked.path.write_text("two\nthree\n")
    wait_until(lambda: locked.lets_in("two", "three", "always"))
    assert locked.status("one") == 401
    other = locked.path.with_suffix(".new")
    other.write_text("four\n")
    os.replace(other, locked.path)
    wait_until(lambda: locked.lets_in("four"))
    assert [locked.status(key) for key in ("two", "three")] == [401, 401]
    assert locked.lets_in("always")
    assert locked.server.end() == 0
    assert KEPT not in locked.server.text


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    lock: Callable[..., Locked],
) -> None:
    locked = lock()
    name = str(locked.path)
    locked.path.write_text("# nobody\n\n")
    locked.says(f"{name} holds no key")
    assert locked.lets_in("one")
    locked.path.write_bytes(b"two\n\xff\n")
    locked.says(f"{name}: expected UTF-8")
    assert locked.lets_in("one")
    locked.path.unlink()
    locked.says(f"{name}: No such file or directory")
    assert locked.lets_in("one")
    assert locked.status("two") == 401
    locked.path.mkdir()
    locked.says(f"{name}: Is a directory")
    locked.path.rmdir()
    locked.path.write_text("two\n")
    wait_until(lambda: locked.lets_in("two"))
    assert locked.status("one") == 401
    assert locked.server.end() == 0
    messages = [line.partition(KEPT)[2] for line in locked.server.lines if KEPT in line]
    assert all(messages.count(line) == 1 for line in messages if "No such file" not in line)


def test_keys_that_become_several_are_told_apart_and_stay_so(lock: Callable[..., Locked]) -> None:
    locked = lock()
    assert locked.status("one", "/metrics") == 200
    locked.path.write_text("one\ntwo\n")
    wait_until(lambda: locked.lets_in("one", "two"))
    assert locked.status("one", "/metrics") == 501  # it would show one key what the other did
    locked.path.write_text("two\n")
    wait_until(lambda: locked.status("one") == 401)
    assert locked.status("two", "/metrics") == 501


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--spec-type", "ngram-mod", "--pool"), "--pool: such a file would hold what all keys"),
        (("--record",), "was begun for a single key"),
    ],
)
def test_several_keys_do_not_get_into_one_file(
    lock: Callable[..., Locked], tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    locked = lock(*options, str(tmp_path / "shared"))
    locked.path.write_text("one\ntwo\n")
    wait_until(lambda: KEPT in locked.server.text)
    assert words in locked.server.text
    assert locked.lets_in("one")
    assert locked.status("two") == 401
    locked.path.write_text("two\n")
    wait_until(lambda: locked.lets_in("two"))
    assert locked.status("one") == 401


def test_a_file_is_read_when_it_has_changed_and_changes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    taken: list[str] = []
    path.write_text("one")
    watch = KeyWatch(path, lambda: taken.append(path.read_text()))
    for text in ("one two", "one two three"):
        path.write_text(text)
        watch.look()
        assert taken == []
    for _ in range(3):
        watch.look()
    assert taken == ["one two three"]
    path.unlink()
    watch.look()
    path.write_text("four")
    watch.look()
    watch.look()
    assert taken == ["one two three", "four"]


def test_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    taken: list[str] = []
    os.mkfifo(path)
    watch = KeyWatch(path, lambda: taken.append("read"))
    for _ in range(3):
        watch.look()
    assert taken == []


def test_the_last_of_several_keys_is_still_told_apart() -> None:
    one = ServerSettings(api_keys=("a",))
    assert not one.with_keys(["b"]).isolates  # a key may be replaced
    several = one.with_keys(["a", "b"])
    assert several.isolates
    last = several.with_keys(["b"])
    assert last.api_keys == ("b",)
    assert last.tells_keys_apart
    assert last.isolates
    assert not last.exposes_metrics
    sharing = ServerSettings(api_keys=("a",), pool_per_key=False).with_keys(["a", "b"])
    assert sharing.tells_keys_apart
    assert not sharing.isolates


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([], "there must be an API key"),
        ([""], "there must be an API key"),
        (["a", "b"], "the pool of ngram-mod given to the engine would not be used"),
    ],
)
def test_keys_that_cannot_be_taken_change_nothing(model: LlamaModel, keys: Any, words: str) -> None:
    engine = Engine(FakeTarget(), "ngram-mod", params={"ngram-mod": {"pool": HashPool(4096)}})
    served = ServedModel(name="tiny", model=model, engine=engine)
    service = create_app(served, ServerSettings(api_keys=("a",))).state.service
    with pytest.raises(InputError, match=words):
        service.take_keys(keys)
    assert service.settings.api_keys == ("a",)
    assert service.keys.find("a")
    assert not service.keys.find("b")
    service.take_keys(["b"])
    assert service.keys.find("b")
    assert not service.keys.find("a")
