"""Slots saved, restored and erased over HTTP, as llama-server's clients do it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.command import Process
from helpers.serving import Serving, Start, serving, wait_until
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server.http.connections import BODY
from ngramspec.server.service import Service

ONE = "def area(width, height):\n    return width * height\n\ndef one("
OTHER = "def area(width, height):\n    return width * height\n\ndef other("
PROMPT: dict[str, Any] = {"n_predict": 20, "ignore_eos": True, "cache_prompt": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def saving(model: LlamaModel, folder: Path) -> Iterator[Serving]:
    with serving(model, slots=2, drafter="suffix", slot_save_path=str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def empty(model: LlamaModel, shared_folder: Path) -> Iterator[Serving]:
    """A server for tests that put no text into its two slots; it saves to the shared folder."""
    with serving(model, slots=2, slot_save_path=str(shared_folder)) as server:
        yield server


def act(server: Serving, slot: Any, action: str, **body: Any) -> httpx.Response:
    return server.client.post(f"/slots/{slot}?action={action}", json=body)


def complete(server: Serving, prompt: str, slot: int, **more: Any) -> dict[str, Any]:
    answer = server.post("/completion", prompt=prompt, id_slot=slot, **{**PROMPT, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_saved_slot_is_restored_into_another(saving: Serving, folder: Path) -> None:
    first = complete(saving, ONE, 1)
    size = first["timings"]["prompt_n"]
    saved = act(saving, 1, "save", filename="one.bin").json()
    assert (saved["id_slot"], saved["filename"]) == (1, "one.bin")
    assert saved["n_saved"] == size + 20 - 1  # the newest token is not in the cache
    assert saved["n_written"] == (folder / "one.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    again = complete(saving, OTHER, 1)
    assert 0 < again["timings"]["prompt_n"] < size
    restored = act(saving, 0, "restore", filename="one.bin").json()
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    assert restored["timings"]["restore_ms"] > 0
    third = complete(saving, OTHER, 0)
    assert third["timings"]["prompt_n"] == again["timings"]["prompt_n"]
    assert third["content"] == again["content"]
    assert complete(saving, OTHER, 1)["timings"]["prompt_n"] == 1


def test_files_are_private_and_whole(saving: Serving, folder: Path) -> None:
    complete(saving, ONE, 0)
    act(saving, 0, "save", filename="one.bin")
    assert stat.S_IMODE((folder / "one.bin").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["one.bin"]


def test_an_erased_slot_reads_the_whole_prompt_again(saving: Serving) -> None:
    first = complete(saving, ONE, 1)
    erased = act(saving, 1, "erase").json()
    assert erased == {"id_slot": 1, "n_erased": first["timings"]["prompt_n"] + 19}
    assert complete(saving, ONE, 1)["timings"]["prompt_n"] == first["timings"]["prompt_n"]


def test_a_file_outlives_the_server(model: LlamaModel, folder: Path) -> None:
    contents = []
    for _ in range(2):
        with serving(model, slots=2, slot_save_path=str(folder)) as server:
            if contents:
                assert act(server, 1, "restore", filename="a").json()["n_restored"] > 20
            answer = complete(server, ONE, 1)
            contents.append(answer["content"])
            cached = answer["timings"]["cache_n"]
            assert act(server, 1, "save", filename="a").status_code == 200
    assert contents[0] == contents[1]
    assert cached > 0


def test_without_the_option_slots_cannot_be_changed(server: Serving) -> None:
    for action in ("save", "restore", "erase"):
        answer = act(server, 0, action, filename="x")
        assert answer.status_code == 501
        assert "--slot-save-path" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "a/b",
            "/etc/passwd",
            "..\\x",
            "a..b",
            "a:b",
            "a*",
            "a?",
            'a"',
            "<a",
            "a|b",
        ),
        *(" a", "a ", "a.", "a\nb", "a\0b", "\x7f", "\x85", "\u2215", "\uff0e", "\ufffd", "\ufeff"),
        "\ud800",
        "a" * 256,
        "ä" * 128,
    ],
)
def test_only_plain_names_are_taken(empty: Serving, shared_folder: Path, name: str) -> None:
    before = sorted(shared_folder.rglob("*"))
    for action in ("save", "restore"):
        body = json.dumps({"filename": name})  # escaped: httpx sends no lone surrogates
        answer = empty.client.post(f"/slots/0?action={action}", content=body)
        assert answer.status_code == 400, answer.text
        assert "filename" in answer.json()["error"]["message"]
    assert sorted(shared_folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["a", ".a", "a b", "ä.bin", "a" * 200, "日本"])
def test_other_names_are_files(empty: Serving, shared_folder: Path, name: str) -> None:
    assert act(empty, 0, "save", filename=name).json()["n_saved"] == 0
    assert (shared_folder / name).is_file()
    assert act(empty, 0, "restore", filename=name).json()["n_restored"] == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"filename": 3}', b'{"filename": null}'])
def test_bodies_without_a_name_are_refused(empty: Serving, body: bytes) -> None:
    answer = empty.client.post("/slots/0?action=save", content=body)
    assert answer.status_code == 400


@pytest.mark.parametrize("slot", ["2", "-1", "x", "1x", "9" * 40, "²"])
def test_slots_that_do_not_exist_are_refused(empty: Serving, slot: str) -> None:
    answer = act(empty, slot, "erase")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Invalid slot ID")


@pytest.mark.parametrize("action", ["", "load", "SAVE"])
def test_other_actions_are_refused(empty: Serving, action: str) -> None:
    answer = act(empty, 0, action, filename="a")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Invalid action")


def test_damaged_and_foreign_files_change_nothing(saving: Serving, folder: Path) -> None:
    complete(saving, ONE, 0)
    act(saving, 0, "save", filename="good")
    good = (folder / "good").read_bytes()
    held = saving.engine.slots()[0].num_past
    chance = random.Random(1)
    broken = [b"", b"x", good[:-1], good[:500], good + b"x", b"ggsq\x03" + good[5:], b"\0" * 4096]
    for _ in range(60):
        at = chance.randrange(len(good))
        broken.append(good[:at] + bytes([good[at] ^ (1 << chance.randrange(8))]) + good[at + 1 :])
    for data in broken:
        (folder / "bad").write_bytes(data)
        answer = act(saving, 0, "restore", filename="bad")
        assert answer.status_code == 400, answer.text
        message = answer.json()["error"]["message"]
        assert message.startswith("Unable to restore slot: bad: ")
        assert str(folder) not in message
        assert saving.engine.slots()[0].num_past == held
    for name in ("missing", "sub"):
        (folder / "sub").mkdir(exist_ok=True)
        assert act(saving, 0, "restore", filename=name).status_code == 400
    assert act(saving, 0, "save", filename="sub").status_code == 400
    assert act(saving, 0, "restore", filename="good").json()["n_restored"] == held


def test_another_models_file_is_refused(
    model: LlamaModel, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from helpers.gguf_models import build

    other = Path(build("llama", tmp_path_factory.mktemp("gguf")))
    with serving(other, exact=False, context_size=256, slot_save_path=str(folder)) as server:
        complete(server, "abc", 0)
        act(server, 0, "save", filename="a")
    with serving(model, slots=1, slot_save_path=str(folder)) as server:
        complete(server, ONE, 0)
        held = server.engine.slots()[0].num_past
        answer = act(server, 0, "restore", filename="a")
        assert answer.status_code == 400
        assert "saved with another model" in answer.json()["error"]["message"]
        assert server.engine.slots()[0].num_past == held


def test_a_full_disk_is_told_and_keeps_the_old_file(saving: Serving, folder: Path) -> None:
    complete(saving, ONE, 0)
    act(saving, 0, "save", filename="a")
    before = (folder / "a").read_bytes()
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        answer = act(saving, 0, "save", filename="a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert answer.status_code == 500
    assert "Unable to save slot: a: File too large" in answer.json()["error"]["message"]
    assert (folder / "a").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_busy_slot_is_waited_for_and_others_go_on(saving: Serving) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        long = threads.submit(complete, saving, ONE, 0, n_predict=400)
        wait_until(lambda: saving.engine.slots()[0].num_emitted > 5)
        save = threads.submit(act, saving, 0, "save", filename="a")
        assert complete(saving, OTHER, 1)["tokens_predicted"] == 20
        assert act(saving, 1, "save", filename="b").status_code == 200
        assert not save.done() or long.done()
        size = long.result()["timings"]["prompt_n"]
        assert save.result().json()["n_saved"] == size + 399


def test_who_leaves_or_waits_too_long_saves_nothing(start: Start, folder: Path) -> None:
    server = start(slots=1, slot_save_path=str(folder), queue_timeout=0.1)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        long = threads.submit(complete, server, ONE, 0, n_predict=400)
        wait_until(lambda: server.engine.slots()[0].num_emitted > 5)
        answer = act(server, 0, "save", filename="a")
        if not long.done():
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert "not idle for 0.1 seconds" in answer.json()["error"]["message"]
            sock = server.connect()
            sock.sendall(
                b"POST /slots/0?action=erase HTTP/1.1\r\nhost: localhost\r\n"
                b"content-length: 0\r\n\r\n"
            )
            time.sleep(0.1)
            sock.close()
        size = long.result()["timings"]["prompt_n"]
    assert server.engine.slots()[0].num_past == size + 399
    assert list(folder.iterdir()) == []


def test_who_sends_no_body_keeps_no_other_waiting(saving: Serving) -> None:
    connections = [saving.connect() for _ in range(2)]  # as many as there are turns
    head = b"POST /slots/0?action=save HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n"
    for sock in connections:
        sock.sendall(head)
    opened = saving.http.connections.open
    wait_until(lambda: sum(one.waits_for == BODY for one in list(opened)) == 2)
    assert act(saving, 0, "save", filename="a").status_code == 200
    for sock in connections:
        sock.close()


def test_a_turn_is_waited_for_no_longer_than_a_slot(start: Start, folder: Path) -> None:
    server = start(slots=1, slot_save_path=str(folder), queue_timeout=0.1)
    service: Service = server.http.config.app.state.service
    service.slot_turns[""] = asyncio.Semaphore(0)  # others have all of them
    answer = act(server, 0, "erase")
    assert answer.status_code == 503
    assert "0.1 seconds" in answer.json()["error"]["message"]


def test_a_body_that_names_a_file_is_small(saving: Serving) -> None:
    answer = act(saving, 0, "save", filename="a", more="x" * (1 << 16))
    assert (answer.status_code, "65536 bytes" in answer.text) == (413, True)


def test_each_key_has_files_of_its_own(start: Start, folder: Path) -> None:
    server = start(slots=2, slot_save_path=str(folder), api_keys=("one", "two"))
    keys = {key: {"authorization": f"Bearer {key}"} for key in ("one", "two")}

    def post(key: str, path: str, **body: Any) -> httpx.Response:
        return server.client.post(path, json=body, headers=keys[key])

    completion = post("one", "/completion", prompt=ONE, id_slot=0, **PROMPT).json()
    held = completion["timings"]["prompt_n"] + 19
    assert post("two", "/slots/0?action=save", filename="a").json()["n_saved"] == 0
    assert post("one", "/slots/0?action=save", filename="a").json()["n_saved"] == held
    assert post("two", "/slots/1?action=restore", filename="a").json()["n_restored"] == 0
    assert post("two", "/slots/0?action=erase").json()["n_erased"] == 0
    assert post("one", "/slots/1?action=restore", filename="a").json()["n_restored"] == held
    again = post("two", "/completion", prompt=ONE, id_slot=1, **PROMPT).json()
    assert again["timings"]["cache_n"] == 0
    assert post("two", "/slots/1?action=restore", filename="b").status_code == 400
    folders = sorted(path for path in folder.iterdir())
    assert len(folders) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in folders)
    assert not {"one", "two"} & {path.name for path in folders}
    (folders[0] / "stolen").write_bytes((folders[1] / "a").read_bytes())
    (folders[1] / "stolen").write_bytes((folders[0] / "a").read_bytes())
    restored = [post(key, "/slots/0?action=restore", filename="stolen") for key in keys]
    assert sorted(answer.status_code for answer in restored) == [400, 400]
    assert "saved by another key" in restored[0].json()["error"]["message"]


def test_the_command_takes_the_folder(spawn: Callable[..., Process], folder: Path) -> None:
    options = ("-c", "512", "-np", "1", "--temp", "0", "--slot-save-path")
    assert spawn(*options, str(folder / "none")).wait() == 2
    url = spawn(*options, str(folder)).url()
    httpx.post(f"{url}/completion", json={"prompt": ONE, **PROMPT}, timeout=60)
    answer = httpx.post(f"{url}/slots/0?action=save", json={"filename": "a"}, timeout=60)
    assert answer.json()["n_saved"] > 20
    assert (folder / "a").is_file()
