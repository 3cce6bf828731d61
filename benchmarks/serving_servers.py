"""The servers that the serving benchmark compares: how each is started, asked and understood."""

from __future__ import annotations

import ctypes
import json
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_client import Answer, Event, Request, text_of
from serving_machine import Cores, keep
from serving_workloads import Prompt

START_LIMIT, STOP_LIMIT = 120.0, 10.0  # seconds
TAIL = 15  # lines of a log
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Settings:
    """What all servers are started with. arguments: more of them, by server."""

    model: Path
    slots: int
    threads: int
    context: int  # tokens per slot
    batch: int
    spec_arguments: str
    arguments: Mapping[str, str]
    cores: Cores


@dataclass(frozen=True)
class Ask:
    """How requests are sent."""

    n_predict: int
    ignore_end: bool
    stream: bool
    chat: bool
    temperature: float = 0.0
    seed: int = 0


class Server:
    """A server with llama-server's options and fields."""

    name = ""
    program: tuple[str, ...] = ()
    health = "/health"

    def variant(self, spec_type: str) -> str:
        """Return what distinguishes the processes that serve this type; some serve several."""
        return spec_type

    def command(self, settings: Settings, spec_type: str, port: int) -> list[str]:
        """Return the command line."""
        options = f"-np {settings.slots} -c {settings.context * settings.slots} -t "
        options += f"{settings.threads} -b {settings.batch} --host {HOST} --port {port}"
        command = [*self.program, "-m", str(settings.model), *options.split()]
        command += ["--spec-type", spec_type]
        if spec_type != "none":
            command += shlex.split(settings.spec_arguments)
        return command + shlex.split(settings.arguments.get(self.name, ""))

    def request(self, prompt: Prompt, ask: Ask) -> Request:
        """Return the request for a prompt."""
        body: dict[str, Any] = {"temperature": ask.temperature, "seed": ask.seed}
        body["ignore_eos"] = ask.ignore_end
        if ask.chat:
            path, body["max_tokens"] = "/v1/chat/completions", ask.n_predict
            body["messages"] = prompt.messages
            body["stream_options"] = {"include_usage": True}
        else:
            path, body["n_predict"] = "/completion", ask.n_predict
            body["prompt"] = prompt.text
        return finished(path, body, ask)

    def read(self, request: Request, events: list[Event]) -> Answer:
        """Understand the answer: later events complete or replace what earlier ones said."""
        merged = {key: value for event in events for key, value in event.items() if value}
        timings, usage = merged.get("timings", {}), merged.get("usage", {})
        prompt = merged.get("tokens_evaluated", usage.get("prompt_tokens"))
        if prompt is None and "cache_n" in timings:
            prompt = timings["cache_n"] + timings["prompt_n"]
        return Answer(
            text="".join(map(text_of, events)),
            tokens=int(timings["predicted_n"]),
            prompt_tokens=prompt,
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
            generating=timings["predicted_ms"] / 1e3,
        )


class Ours(Server):
    """`ngramspec serve`."""

    name = "ngramspec"
    program = (sys.executable, "-m", "ngramspec", "serve")


class LlamaServer(Server):
    """llama.cpp's own server."""

    name = "llama-server"

    def __init__(self, program: str) -> None:
        self.program = (program,)

    def variant(self, spec_type: str) -> str:
        """Return the type, or ngram-mod, which shares a pool too, for `suffix`: it has none."""
        return spec_type.replace("suffix", "ngram-mod")

    def command(self, settings: Settings, spec_type: str, port: int) -> list[str]:
        """Return the command line."""
        return super().command(settings, self.variant(spec_type), port)


class LlamaCppPython(Server):
    """The server in llama-cpp-python: one request at a time; its drafter is prompt lookup."""

    name = "llama_cpp.server"
    health = "/v1/models"

    def variant(self, spec_type: str) -> str:
        """Return its one drafter for every type but none."""
        return "none" if spec_type == "none" else "prompt-lookup-decoding"

    def command(self, settings: Settings, spec_type: str, port: int) -> list[str]:
        """Return the command line; without logits of prompt positions, which nobody wants."""
        options = {
            "model": settings.model,
            "n_ctx": settings.context,
            # With a draft model it ends at prompts that are longer than a batch.
            "n_batch": max(settings.batch, settings.context),
            "n_threads": settings.threads,
            "n_threads_batch": settings.threads,
            "host": HOST,
            "port": port,
            "interrupt_requests": "false",
            "logits_all": "false",
            "verbose": "false",
        }
        if spec_type != "none":
            options["draft_model"] = self.variant(spec_type)
        command = [sys.executable, "-m", "llama_cpp.server"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        return command + shlex.split(settings.arguments.get(self.name, ""))

    def request(self, prompt: Prompt, ask: Ask) -> Request:
        """Return the request for a prompt; this server cannot be told to ignore the end."""
        body: dict[str, Any] = {"temperature": ask.temperature, "seed": ask.seed}
        body["repeat_penalty"] = 1.0
        body["max_tokens"] = ask.n_predict
        if ask.chat:
            body["messages"] = prompt.messages
            return finished("/v1/chat/completions", body, ask)
        return finished("/v1/completions", body | {"prompt": prompt.text}, ask)

    def read(self, request: Request, events: list[Event]) -> Answer:
        """Understand the answer; streams come without counts, but with a token in every event.

        The end token is counted, as the other servers do.
        """
        text = [text_of(event) for event in events]
        usage = events[-1].get("usage", {})
        reason = [event["choices"][0].get("finish_reason") for event in events][-1]
        tokens = usage.get("completion_tokens", len([one for one in text if one]))
        if request.stream and reason == "length":
            tokens = request.n_predict
        return Answer(
            text="".join(text),
            tokens=tokens + (reason == "stop"),
            prompt_tokens=usage.get("prompt_tokens"),
            drafted=None,
            accepted=None,
        )


class Transformers(Server):
    """transformers' generate; its drafter is prompt lookup. Weights are unpacked to float32."""

    name = "transformers"
    program = (sys.executable, str(Path(__file__).with_name("real_models_transformers.py")))

    def command(self, settings: Settings, spec_type: str, port: int) -> list[str]:
        """Return the command line."""
        options = ["-m", str(settings.model), "-t", str(settings.threads), "--port", str(port)]
        lookup = [] if spec_type == "none" else ["--prompt-lookup-num-tokens", spec_type]
        return [*self.program, *options, *lookup]


def finished(path: str, body: dict[str, Any], ask: Ask) -> Request:
    """Return a request with this body."""
    data = json.dumps({**body, "stream": ask.stream}).encode()
    return Request(path, data, ask.n_predict, ask.stream)


@dataclass
class Process:
    """A running server."""

    port: int
    popen: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """Return the end of what it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL:])


def prepare_child(cores: Cores) -> Callable[[], None] | None:
    """Return what a child calls: it ends when this process is killed, and keeps to its cores.

    None where that cannot be said (it can on Linux).
    """
    if sys.platform != "linux":
        return None
    prctl, set_death_signal = ctypes.CDLL(None).prctl, 1

    def prepare() -> None:
        prctl(set_death_signal, signal.SIGKILL)
        keep(cores.servers)

    return prepare


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_until_healthy(process: Process, path: str) -> None:
    """Wait until a server answers.

    Raises:
        RuntimeError: It ended instead, or took too long.
    """
    deadline = time.monotonic() + START_LIMIT
    while process.popen.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{process.port}{path}", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError("it did not start")


@contextmanager
def running(server: Server, settings: Settings, spec_type: str) -> Iterator[Process]:
    """Start a server, wait until it answers, and end it in any case.

    Raises:
        RuntimeError: It did not start or failed; the message holds the end of its log.
    """
    port = free_port()
    command = server.command(settings, spec_type, port)
    with tempfile.NamedTemporaryFile(prefix=f"{server.name}-", suffix=".log") as log:
        popen = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=prepare_child(settings.cores),
        )
        process = Process(port, popen, Path(log.name))
        try:
            wait_until_healthy(process, server.health)
            yield process
        except (RuntimeError, OSError, EOFError) as error:
            lines = [f"{server.name}: {error}", shlex.join(command), process.tail()]
            raise RuntimeError("\n".join(lines)) from error
        finally:
            stop(popen)


def stop(popen: subprocess.Popen[bytes]) -> None:
    """End a process, at first politely."""
    popen.terminate()
    try:
        popen.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
