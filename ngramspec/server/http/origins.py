"""Origins: the host names that the server answers to, and the web pages that can use it."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers

from ngramspec.server.errors import ApiError
from ngramspec.server.settings import ServerSettings

# Nobody on the internet can register a name below these.
LOCAL = (".localhost", ".local", ".internal", ".home.arpa")
ANY = "*"
THIS_MACHINE = "localhost"  # as one of --cors-origins: any page of this machine
PAGES_HERE = r"https?://([^/@:]+\.)?(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?"
SAFE_METHODS = ("GET", "HEAD")
LONGEST_SHOWN = 100  # characters of a header in a message


class Origins:
    """Refuses requests that only a web page of another site would send.

    A page can make a browser send requests to any address, this machine's own included, but it
    cannot change the headers Host, Origin and Sec-Fetch-Site. Programs other than browsers send no
    Origin and pass.
    """

    def __init__(self, settings: ServerSettings) -> None:
        own = [host for host in settings.hosts if not host.endswith(".sock")]
        self._hosts = tuple(map(_normal, (*settings.allowed_hosts, *own)))
        # No page reaches a Unix socket, and none knows a key, even if its name has our address.
        self._any_host = not own or bool(settings.api_keys) or ANY in self._hosts
        self._pages = frozenset(settings.cors_origins)

    def check(self, method: str, headers: Headers) -> None:
        """Let a request pass or refuse it.

        Raises:
            ApiError: 403 for a foreign Host or Origin, 415 for a body that a browser would send for
                any page without asking.
        """
        hosts = headers.getlist("host")
        if not self._any_host:
            for host in hosts:
                self._check_host(host)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            return
        if ANY in self._pages or origin in self._pages:
            return
        if THIS_MACHINE in self._pages and origin is not None and _is_loopback(_host_of(origin)):
            return
        if origin is None:
            if site in ("cross-site", "same-site") and method not in SAFE_METHODS:
                raise _foreign("a page of another origin")
        elif site != "same-origin" and not self._may_ask(origin, hosts):
            raise _foreign(_shown(origin))
        if method == "POST" and not _is_json(headers.get("content-type", "")):
            raise ApiError(415, "a browser must send JSON with Content-Type: application/json")

    def _check_host(self, host: str) -> None:
        name = _name_of(host)
        if not (_is_near(name) or _matches(name, self._hosts)):
            raise ApiError(
                403,
                f"this server does not answer to the name {_shown(name)}; "
                "--allow-host NAME makes it do so",
                code="host_not_allowed",
            )

    def _may_ask(self, origin: str, hosts: Collection[str]) -> bool:
        """Return whether a page of this origin can send requests: ours, or of this machine."""
        scheme, mark, place = origin.partition("://")
        if scheme not in ("http", "https"):
            return bool(mark)  # an app's or an extension's; "null" may be any page
        name = _name_of(place)
        # Behind a proxy the scheme may differ from ours.
        return place in hosts or _is_loopback(name) or _matches(name, self._hosts)


def _foreign(who: str) -> ApiError:
    return ApiError(
        403,
        f"{who} may not ask this server; --cors-origins ORIGIN lets its pages do so",
        code="origin_not_allowed",
    )


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _host_of(origin: str) -> str:
    return _name_of(origin.partition("://")[2])


def _name_of(host: str) -> str:
    """Return the name or address of a Host header, without port and brackets."""
    host = host.strip()
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return _normal(name)


def _normal(name: str) -> str:
    name = name.strip().lower().rstrip(".")
    return name[1:] if name.startswith("*.") else name


def _is_near(name: str) -> bool:
    """Return whether a name cannot be one that a stranger has pointed at our address.

    Addresses need no DNS. Names without a dot, and names below LOCAL, come from the machine or its
    network.
    """
    return "." not in name or _is_address(name) or name.endswith(LOCAL)


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _matches(name: str, allowed: Collection[str]) -> bool:
    """Return whether a name is allowed, or below one that begins with a dot."""
    return any(name == one or (one.startswith(".") and name.endswith(one)) for one in allowed)


def _shown(text: str) -> str:
    return repr(text[:LONGEST_SHOWN])
