"""ServerSettings: what the server allows, exposes and waits for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20


class ServerSettings(BaseModel):
    """Settings of the HTTP side; those of model and engine are not here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)  # 0 = any free one
    api_keys: tuple[str, ...] = Field(default=(), repr=False)  # none: everybody may ask
    pool_per_key: bool = False  # what is learned for one key is not drafted from for another
    metrics: bool = False  # GET /metrics without a key
    slots: bool | None = None  # GET /slots; None: only where keys protect it
    props: bool = False  # POST /props
    cors_origins: tuple[str, ...] = ()  # "*" = any
    max_body_bytes: int = Field(default=32 * MIB, ge=1024)
    max_prompt_tokens: int | None = Field(default=None, ge=1)  # None: the context's size
    max_generations: int = Field(default=32, ge=1)  # prompts times choices of one request
    read_timeout: float = Field(default=60.0, gt=0)  # seconds for the body of a request
    request_timeout: float = Field(default=3600.0, gt=0)  # seconds a generation may run
    queue_timeout: float = Field(default=600.0, gt=0)  # seconds it may wait for a slot
    # seconds that a client may leave a stream unread
    slow_client_timeout: float = Field(default=30.0, gt=0)
    max_buffered_chunks: int = Field(default=8192, ge=16)  # kept for a client that reads slowly
    # seconds of silence in a stream before a ping, 0 = no pings
    sse_ping_interval: float = Field(default=30.0, ge=0)
    drain_timeout: float = Field(default=30.0, ge=0)  # seconds for running requests at the end
    retry_after: int = Field(default=2, ge=1)  # seconds, told with 503
    reasoning_format: Literal["auto", "none"] = "auto"  # auto: <think> text is told apart
    access_log: bool = False
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None

    @property
    def exposes_slots(self) -> bool:
        """Tell whether GET /slots answers."""
        return bool(self.api_keys) if self.slots is None else self.slots

    @property
    def exposes_metrics(self) -> bool:
        """Tell whether GET /metrics answers."""
        return self.metrics or bool(self.api_keys)
