"""Slots: what each does, and saving, restoring and erasing what it holds."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.engine import SavedSlot, SlotInfo, read_slot, write_slot
from ngramspec.errors import FormatError, NgramspecError
from ngramspec.server.errors import ApiError, api_error, bad_request, not_supported
from ngramspec.server.http.connections import unless_gone
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import (
    Body,
    parse,
)
from ngramspec.server.service import (
    MAX_NAME_BODY,
    Service,
    json_response,
    posts,
    routes,
    service_of,
)

T = TypeVar("T")
PRIVATE = 0o700  # a key's folder
MAX_NAME = 255  # bytes
# Characters that no file name may have: those that some system forbids, and look-alikes of "/" and
# "." that some turn into them.
_FORBIDDEN = frozenset('/\\:*?"<>|\x7f\u2215\u2216\uff0e\ufffd\ufeff')


class SlotBody(Body):
    """POST /slots/{id}?action=save and =restore."""

    filename: str


async def slots(request: Request) -> Response:
    service = service_of(request)
    if not service.settings.exposes_slots:
        raise not_supported(
            "This server does not support slots endpoint. Start it with `--slots`, or one API key"
        )
    infos = service.served.engine.slots()
    if request.query_params.get("fail_on_no_slot") and all(i.state != "idle" for i in infos):
        raise ApiError(503, "no slot available", retry_after=service.settings.retry_after)
    return json_response([_slot(info, service.served) for info in infos])


async def change_slot(request: Request) -> Response:
    """Save, restore or erase what a slot holds, once it is idle."""
    service = service_of(request)
    if not service.settings.slot_save_path:
        raise not_supported(
            "This server does not support slots action. Start it with `--slot-save-path`"
        )
    action = _ACTIONS.get(request.query_params.get("action", ""))
    if action is None:
        raise bad_request("Invalid action", "action")
    slot = _slot_id(request.path_params["slot_id"], service)
    tenant = service.tenant_of(request)
    name = "" if action is _erase else _name(await service.read(request, MAX_NAME_BODY))
    turn = service.slot_turns.setdefault(tenant, asyncio.Semaphore(service.served.engine.num_slots))
    await _done(request, service, turn.acquire())  # each holds a copy of its slot
    try:
        return json_response(await action(request, service, slot, tenant, name))
    finally:
        turn.release()


async def _save(
    request: Request, service: Service, slot: int, tenant: str, name: str
) -> dict[str, Any]:
    started = time.perf_counter()
    future = service.served.engine.save_slot(slot, _owner(request, service))
    saved = await _done(request, service, asyncio.wrap_future(future))
    path = _path(service, tenant, name)
    size = await _on_disk("save", path, lambda: _write(path, saved))
    figures = {"n_saved": int(saved.tokens.size), "n_written": size}
    return _report(slot, name, figures, "save_ms", started)


async def _restore(
    request: Request, service: Service, slot: int, tenant: str, name: str
) -> dict[str, Any]:
    started = time.perf_counter()
    path = _path(service, tenant, name)
    saved, size = await _on_disk("restore", path, lambda: read_slot(path))
    engine, owner = service.served.engine, _owner(request, service)
    future = engine.restore_slot(slot, saved, owner, tenant)
    try:
        count = await _done(request, service, asyncio.wrap_future(future))
    except ApiError as error:
        if error.status == 400:
            raise bad_request(f"Unable to restore slot: {error.message}", "filename") from error
        raise
    return _report(slot, name, {"n_restored": count, "n_read": size}, "restore_ms", started)


async def _erase(
    request: Request, service: Service, slot: int, tenant: str, name: str
) -> dict[str, Any]:
    future = service.served.engine.erase_slot(slot, _owner(request, service))
    count = await _done(request, service, asyncio.wrap_future(future))
    return {"id_slot": slot, "n_erased": count}


_ACTIONS = {"save": _save, "restore": _restore, "erase": _erase}


def _report(
    slot: int, name: str, figures: dict[str, int], time_name: str, started: float
) -> dict[str, Any]:
    spent = round(1e3 * (time.perf_counter() - started), 3)
    return {"id_slot": slot, "filename": name, **figures, "timings": {time_name: spent}}


async def _done(request: Request, service: Service, work: Awaitable[T]) -> T:
    """Return what came of work on a slot; give it up if the client leaves, or it takes too long.

    Raises:
        ApiError: It failed, or took too long.
        ClientGone: The client left.
    """
    settings = service.settings
    try:
        return await unless_gone(work, request.receive, settings.queue_timeout)
    except asyncio.TimeoutError as error:
        message = f"the slot was not idle for {settings.queue_timeout:g} seconds"
        after = settings.retry_after
        raise ApiError(503, message, code="server_overloaded", retry_after=after) from error
    except NgramspecError as error:
        raise api_error(error, settings.retry_after) from error


async def _on_disk(action: str, path: Path, work: Callable[[], T]) -> T:
    """Run work() with a file in a thread, and tell its failures without the folder's name."""
    try:
        return await asyncio.to_thread(work)
    except FormatError as error:
        message = str(error).replace(str(path), path.name)
        raise bad_request(f"Unable to {action} slot: {message}", "filename") from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "the file cannot be used"
        message = f"Unable to {action} slot: {path.name}: {why}"
        if error.errno in (errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR):
            raise bad_request(message, "filename") from error
        raise ApiError(500, message) from error


def _write(path: Path, saved: SavedSlot) -> int:
    path.parent.mkdir(mode=PRIVATE, exist_ok=True)
    return write_slot(path, saved)


def _path(service: Service, tenant: str, name: str) -> Path:
    """Return the path of a file; each of several keys has a folder of its own."""
    assert service.settings.slot_save_path is not None
    return Path(service.settings.slot_save_path, tenant, name)


def _owner(request: Request, service: Service) -> str:
    """Return how namespaces begin whose text the request's key may see, "" = any."""
    namespace = service.namespace_of(request)
    return f"{namespace}:" if namespace else ""


def _slot_id(text: str, service: Service) -> int:
    slot = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= slot < service.served.engine.num_slots:
        raise bad_request("Invalid slot ID", "id_slot")
    return slot


def _name(raw: bytes) -> str:
    """Return the name of the file in a body.

    Raises:
        ApiError: It is missing, or no plain name of a file.
    """
    name = parse(raw, SlotBody).filename
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    refused = (
        not 0 < size <= MAX_NAME
        or any(c in _FORBIDDEN or ord(c) < 0x20 or 0x80 <= ord(c) < 0xA0 for c in name)
        or name[0] == " "
        or name[-1] in " ."
        or ".." in name
    )
    if refused:
        raise bad_request("Invalid filename", "filename")
    return name


def _slot(info: SlotInfo, served: ServedModel) -> dict[str, Any]:
    return {
        "id": info.id,
        "id_task": info.request_number,
        "request_id": info.request_id,
        "n_ctx": served.engine.context_size,
        "speculative": info.speculative,
        "is_processing": info.state != "idle",
        "state": info.state,
        "waits_for": info.waits_for,
        "n_prompt_tokens": info.num_prompt,
        "n_prompt_tokens_cache": info.num_cached,
        "n_prompt_tokens_processed": max(0, min(info.num_past, info.num_prompt) - info.num_cached),
        "n_tokens": info.num_tokens,
        "n_past": info.num_past,
        "draft_n": info.num_draft_tokens,
        "draft_n_accepted": info.num_accepted_tokens,
        "next_token": [
            {
                "has_next_token": info.state != "idle",
                "n_remain": info.num_remaining,
                "n_decoded": info.num_emitted,
            }
        ],
    }


ROUTES = [
    *routes(slots, "/slots"),
    *posts(change_slot, "/slots/{slot_id}"),
]
