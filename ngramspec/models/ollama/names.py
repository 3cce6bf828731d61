"""Names of models, as Ollama writes them: [host/][namespace/]model[:tag]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ngramspec.errors import InputError

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"

_NAMED = r"[A-Za-z0-9_][\w.-]{0,79}"
_PARTS = {  # what each part may hold, in words and as a pattern
    "host": ("letters, digits and _-.: (at most 350)", r"[A-Za-z0-9_][\w.:-]{0,349}"),
    "namespace": ("letters, digits and _- (at most 80)", r"[A-Za-z0-9_][\w-]{0,79}"),
    "model": ("letters, digits and _-. (at most 80)", _NAMED),
    "tag": ("letters, digits and _-. (at most 80)", _NAMED),
}


@dataclass(frozen=True, order=True)
class ModelName:
    """A full name; every part is valid, so that it is safe as part of a path.

    host: Of the registry, with a port if it has one.
    """

    host: str
    namespace: str
    model: str
    tag: str

    def __post_init__(self) -> None:
        for part, (expected, pattern) in _PARTS.items():
            text = getattr(self, part)
            if not re.fullmatch(pattern, text, re.ASCII):
                reason = f"expected {expected}, not first -, . or :"
                raise InputError(f"not a {part}: {text!r:.100}: {reason}")

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Read a name; what is left out gets Ollama's default.

        Args:
            text: Such as llama3, llama3:8b, user/model, host:5000/user/model:tag.

        Raises:
            InputError: A part is empty, too long or has a character that names do not have.
        """
        rest, tag = text.rpartition("://")[2], TAG
        if rest.rfind(":") > rest.rfind("/"):
            rest, _, tag = rest.rpartition(":")
        front, slash, model = rest.rpartition("/")
        host, namespace = HOST, NAMESPACE
        if slash:
            host_given, slash, namespace = front.rpartition("/")
            host = host_given if slash else HOST
        try:
            return cls(host, namespace, model, tag)
        except InputError as error:
            raise InputError(f"not a model name: {text!r:.100}: {error}") from None

    @classmethod
    def from_path(cls, path: PurePosixPath) -> ModelName:
        """Return the name that a manifest's path stands for.

        Args:
            path: Relative to the folder of manifests: host/namespace/model/tag.

        Raises:
            InputError: Not four parts, or not parts of a name.
        """
        if len(path.parts) != 4:
            raise InputError(f"{path} is not a manifest's path: expected host/namespace/model/tag")
        return cls(*path.parts)

    def path(self) -> PurePosixPath:
        """Return the path of the manifest, relative to the folder of manifests."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)

    def short(self) -> str:
        """Return the name without the default host and namespace, as Ollama lists it."""
        front = f"{self.host}/{self.namespace}/"
        if self.host.lower() == HOST:
            front = "" if self.namespace.lower() == NAMESPACE else f"{self.namespace}/"
        return f"{front}{self.model}:{self.tag}"

    def shown(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    def same_as(self, other: ModelName) -> bool:
        """Compare like Ollama, ignoring case."""
        return self.shown().lower() == other.shown().lower()
