"""ServerSettings: what the server allows, exposes and waits for."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MIB = 1 << 20


class ServerSettings(BaseModel):
    """Settings of the HTTP side; those of model and engine are not here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"  # with commas for several
    port: int = Field(default=8080, ge=0, le=65535)  # 0 = any free one
    api_keys: tuple[str, ...] = Field(default=(), repr=False)  # none: anybody can send requests
    # Tell keys apart as if there were several, because there were: see with_keys.
    keys_apart: bool = False
    # What is learned for one key is not used for another; None: if there are several keys.
    pool_per_key: bool | None = None
    # GET /metrics, and GET /slots with the figures of the page; None: only if keys protect them and
    # they do not show one key what others did. The page's figures, which are sums, also where only
    # this machine reaches the server.
    metrics: bool | None = None
    slots: bool | None = None
    props: bool = False  # POST /props
    slot_save_path: str | None = None  # folder for saved slots, None: slots cannot be saved
    cors_origins: tuple[str, ...] = ()  # "*" = any
    # further names that the server answers to; ".a.b" = all below a.b, "*" = any
    allowed_hosts: tuple[str, ...] = ()
    max_connections: int = Field(default=512, ge=1)
    max_body_bytes: int = Field(default=32 * MIB, ge=1024)
    max_prompt_tokens: int | None = Field(default=None, ge=1)  # None: the context's size
    max_generations: int = Field(default=32, ge=1)  # prompts times choices of one request
    # bytes of all request bodies together, without the first 256 KiB of each
    max_held_bytes: int = Field(default=256 * MIB, ge=0)
    header_timeout: float = Field(default=20.0, gt=0)  # seconds for the head of a request
    read_timeout: float = Field(default=60.0, gt=0)  # seconds for its body
    request_timeout: float = Field(default=3600.0, gt=0)  # seconds a generation can run
    queue_timeout: float = Field(default=600.0, gt=0)  # seconds it can wait for a slot
    # seconds that a client can leave a stream unread
    slow_client_timeout: float = Field(default=30.0, gt=0)
    max_buffered_chunks: int = Field(default=8192, ge=16)  # kept for a client that reads slowly
    # seconds of silence in a stream before a ping, 0 = no pings
    sse_ping_interval: float = Field(default=30.0, ge=0)
    # seconds that a step of the engine can take before it counts as hanging, 0 = no limit
    stall_timeout: float = Field(default=600.0, ge=0)
    drain_timeout: float = Field(default=30.0, ge=0)  # seconds for running requests at shutdown
    retry_after: int = Field(default=2, ge=1)  # seconds, sent with 503
    reasoning_format: Literal["auto", "none"] = "auto"  # auto: reasoning is split off
    page: bool = True  # the page at /
    api_prefix: str = ""  # of all paths, "/api" for example
    access_log: bool = False
    # what answers of OpenAI's routes tell of their drafts, as in vLLM; detailed: of each draft
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "none"
    verbose: bool = False  # answers have `__verbose` unless a request says otherwise
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> ServerSettings:
        if self.pool_per_key and not self.api_keys:
            raise ValueError("pool_per_key needs api_keys: without keys all requests share")
        return self

    @field_validator("api_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ValueError("api_prefix must begin with / and not end with it")
        return prefix

    def with_keys(self, keys: Sequence[str]) -> ServerSettings:
        """Return these settings with other keys.

        Keys that were told apart are from then on: the last one of several gets neither what others
        taught when they shared, nor figures that are sums over all keys.
        """
        apart = {"api_keys": tuple(keys), "keys_apart": self.tells_keys_apart}
        return self.model_copy(update=apart)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for one in self.host.split(",") if (host := one.strip()))

    @property
    def tells_keys_apart(self) -> bool:
        """Return whether there are several keys, each with its share of slots, queue and memory."""
        return self.keys_apart or len(set(self.api_keys)) > 1

    @property
    def isolates(self) -> bool:
        """Return whether what is learned or cached for one key is kept from other keys."""
        return self.tells_keys_apart and self.pool_per_key is not False

    @property
    def open_hosts(self) -> tuple[str, ...]:
        """Return the addresses at which other machines can send requests without a key."""
        if self.api_keys:
            return ()
        return tuple(one for one in self.hosts if not (one.endswith(".sock") or _is_here(one)))

    @property
    def exposes_slots(self) -> bool:
        return self._guarded if self.slots is None else self.slots

    @property
    def exposes_live(self) -> bool:
        if self.slots is not None:
            return self.slots
        return self._guarded or (not self.api_keys and all(map(_is_here, self.hosts)))

    @property
    def exposes_metrics(self) -> bool:
        return self._guarded if self.metrics is None else self.metrics

    @property
    def _guarded(self) -> bool:
        """Return whether keys protect the figures of all requests and every key can see them."""
        return bool(self.api_keys) and not self.isolates


def _is_here(host: str) -> bool:
    """Return whether only this machine reaches an address; who reaches a Unix socket is unknown."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
