"""A real server in this process: embedded model, engine, uvicorn in a thread, a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import uvicorn.server
from starlette.applications import Starlette

from helpers.exact_settings import find_once
from ngramspec.engine import AutoPolicy, Engine, EngineThread, Sampling
from ngramspec.llamacpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.http.run import HttpServer, bind, url_of
from ngramspec.server.service import Service

if TYPE_CHECKING:
    import openai

CODE = "def area(width, height):\n    return width * height\n"
REPEAT = f"Repeat this code:\n\n```python\n{CODE}```"
ANSWER = f"```python\n{CODE}```"
THINK = f"Think, then rename `width` to `w` in this code:\n\n```python\n{CODE}```"
THINKING: list[Any] = [{"role": "user", "content": THINK}]
OPENS = (  # the reasoning
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
CHAT: list[Any] = [{"role": "user", "content": REPEAT}]
TEXT = "Repeat this text:\n\none two three, one two three"
PATIENCE = 20.0  # seconds for what should take milliseconds

# uvicorn sleeps 0.1 s before it looks whether it should end, and again before it does; a test
# that has a server of its own takes less.
uvicorn.server.asyncio = types.SimpleNamespace(  # type: ignore[attr-defined]
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)}
)


@dataclass(frozen=True)
class Serving:
    """What runs.

    Its clients speak plain HTTP. They load no certificates: that takes longer than an answer.
    """

    url: str
    served: ServedModel
    bridge: Bridge
    http: HttpServer
    key: str = ""

    @property
    def engine(self) -> Engine:
        return self.served.engine

    @cached_property
    def openai(self) -> openai.OpenAI:
        """Return OpenAI's own client; it retries nothing. Most tests do without that import."""
        import openai

        plain = openai.DefaultHttpxClient(verify=False)
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key or "none",
            max_retries=0,
            timeout=60,
            http_client=plain,
        )

    @cached_property
    def client(self) -> httpx.Client:
        """Return a plain client."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        path = self.url.removeprefix("unix:")
        if path == self.url:
            return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False)
        transport = httpx.HTTPTransport(uds=path, verify=False)
        return httpx.Client(transport=transport, base_url="http://x", headers=headers, timeout=60)

    def connect(self, receive_buffer: int = 0) -> socket.socket:
        """Return a connected socket; receive_buffer: bytes that the system keeps for it."""
        path = self.url.removeprefix("unix:")
        family = socket.AF_INET if path == self.url else socket.AF_UNIX
        sock = socket.socket(family)
        sock.settimeout(PATIENCE)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        place = urlsplit(self.url)
        sock.connect((place.hostname, place.port) if path == self.url else path)
        return sock

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def chat(self, **body: Any) -> Any:
        """Return the answer of OpenAI's client to a greedy chat; `extra` holds other fields."""
        extra = body.pop("extra", {})
        fields: dict[str, Any] = {"model": "tiny", "messages": CHAT, "temperature": 0, **body}
        return self.openai.chat.completions.create(**fields, extra_body=extra)

    def complete(self, **body: Any) -> Any:
        """Return the answer of OpenAI's client to a greedy text completion."""
        extra = body.pop("extra", {})
        fields: dict[str, Any] = {"model": "tiny", "prompt": "def area(", "temperature": 0, **body}
        return self.openai.completions.create(**fields, extra_body=extra)

    def busy_slots(self) -> int:
        return sum(slot.state != "idle" for slot in self.engine.slots())

    def wait_idle(self) -> None:
        """Wait until no slot works; fail after PATIENCE."""
        wait_until(lambda: not (self.engine.busy or self.busy_slots() or self.bridge._answers))


Start = Callable[..., Serving]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until it is so; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextlib.contextmanager
def serving(
    model: LlamaModel | Path,
    *,
    expose_slots: bool | None = True,
    served: dict[str, Any] | None = None,
    send_buffer: int = 0,
    host: str = "127.0.0.1",
    **settings: Any,
) -> Iterator[Serving]:
    """Run a server in the block; exact, so that texts can be compared.

    send_buffer: Bytes that the system keeps per connection, 0 = as it likes. Further arguments are
    those of `running_engine` and settings of the server.
    """
    names = (
        *("slots", "drafter", "params", "max_queue", "exact", "context_size", "policy"),
        *("draft_model", "context_shift"),
    )
    own = {name: settings.pop(name) for name in names if name in settings}
    with contextlib.ExitStack() as stack:
        if isinstance(model, Path):
            model = stack.enter_context(LlamaModel(model))
        engine = stack.enter_context(running_engine(model, **own))
        options: dict[str, Any] = {"sampling": Sampling(temperature=0.0), **(served or {})}
        offered = ServedModel(name="tiny", model=model, engine=engine, **options)
        server_settings = ServerSettings(
            host=host, port=0, slots=expose_slots, **{"drain_timeout": 5, **settings}
        )
        sock = stack.enter_context(bind([host], 0)[0])
        if send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        yield stack.enter_context(_listening(create_app(offered, server_settings), sock))


@contextlib.contextmanager
def running_engine(
    model: LlamaModel,
    *,
    slots: int = 4,
    drafter: str | None = "ngram-mod,ngram-cache",
    params: Any = None,
    max_queue: int = 64,
    exact: bool = True,
    context_size: int = 2048,
    policy: AutoPolicy | None = None,
    draft_model: DraftModelSettings | None = None,
    context_shift: bool = False,
) -> Iterator[Engine]:
    """Run an engine on one thread in the block.

    policy: None = a gate, which weighs no costs, so drafts do not depend on the machine.
    """
    target = LlamaTarget(
        model,
        slots=slots,
        context_size=context_size,
        threads=1,
        threads_batch=1,
        flash_attn=True,
        kv_unified=not exact,
    )
    if exact:
        target.exact_batch = find_once(model, threads=1, slots=2).limit()
    with target, contextlib.ExitStack() as stack:
        small = draft_model and open_draft_model(draft_model, target, stack)
        engine = Engine(
            target,
            drafter,
            draft_model=small,
            slots=slots,
            params=params,
            policy=policy or AutoPolicy(gate=True),
            max_queue=max_queue,
            exact=exact,
            context_shift=context_shift,
        )
        with EngineThread(engine):
            yield engine


@contextlib.contextmanager
def _listening(app: Starlette, sock: socket.socket) -> Iterator[Serving]:
    service: Service = app.state.service
    http = HttpServer(app)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [sock]}, daemon=True)
    keys = service.settings.api_keys
    running = Serving(url_of(sock), service.served, service.bridge, http, keys[0] if keys else "")
    thread.start()
    wait_until(lambda: http.started)
    try:
        yield running
    finally:
        for name in ("client", "openai"):  # those that were made
            if name in running.__dict__:
                getattr(running, name).close()
        http.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
