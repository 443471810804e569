"""Identifies people by the headers of a proxy that signs them in, by OpenID Connect for example.

Anybody can send headers, so they are accepted only from the addresses of the proxy. A request from
another address that has one of these headers is refused and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers

from ergon_framework.app.settings.sections import ProxySettings
from ergon_framework.core.text import one_line
from ergon_framework.web.responses import NotAllowedError
from ergon_framework.web.tokens import CallerRole, CallerRoles

logger = logging.getLogger("ergon.web.audit")
MAX_NAME = 200
MAX_GROUPS = 1000
"""How many groups of one person are read; the rest are ignored."""


@dataclass(frozen=True, slots=True)
class ProxyIdentity:
    """A person whom the proxy has signed in."""

    name: str
    role: CallerRole


class ProxyLogin:
    """Reads the headers of one proxy."""

    def __init__(self, settings: ProxySettings) -> None:
        self._networks = tuple(ip_network(each) for each in settings.trusted)
        self._user, self._groups = settings.user.lower(), settings.groups.lower()
        self._roles = CallerRoles(frozenset(settings.operators), frozenset(settings.admins))

    def identity(self, address: str | None, headers: Headers) -> ProxyIdentity | None:
        """The person whom the proxy names. None if it names nobody. NotAllowedError for a malformed
        header.

        ``address`` is that of the connection's peer, whatever headers say.
        """
        if self._user not in headers and self._groups not in headers:
            return None
        if not self._is_trusted(address):
            logger.warning("headers of a proxy came from %s, which is none", address or "somebody")
            raise NotAllowedError(
                f"the header {self._user} is taken from the proxy alone, and you are none",
                remedy="leave the header out, or list the address of the proxy as trusted under"
                " [server.proxy]",
            )
        name = _only(headers, self._user).strip()
        if not name:
            return None
        if len(name) > MAX_NAME or not name.isprintable():
            raise NotAllowedError(
                f"the header {self._user} holds no name",
                remedy=f"let the proxy send at most {MAX_NAME} printable characters",
            )
        groups = [each.strip() for each in _only(headers, self._groups).split(",")]
        return ProxyIdentity(one_line(name), self._role(groups[:MAX_GROUPS]))

    def _role(self, groups: Iterable[str]) -> CallerRole:
        found = {self._roles.of(each) for each in groups if each}
        for role in (CallerRole.ADMIN, CallerRole.OPERATOR):
            if role in found:
                return role
        return CallerRole.VIEWER

    def _is_trusted(self, address: str | None) -> bool:
        try:
            found = ip_address(address or "")
        except ValueError:  # Behind a Unix socket the address of the caller is unknown.
            return False
        mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
        known = mapped or found
        return any(known in each for each in self._networks if each.version == known.version)


def _only(headers: Headers, name: str) -> str:
    """The single header of that name. Of two headers, one may be what the caller had sent."""
    given = headers.getlist(name)
    if len(given) > 1:
        raise NotAllowedError(
            f"the header {name} came twice",
            remedy="let the proxy replace what callers send, not add to it",
        )
    return given[0] if given else ""
