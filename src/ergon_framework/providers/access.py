"""Who may read without an authorizer: somebody on this machine, and nobody in between."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

_PASSED_ON = frozenset(
    {"cf-connecting-ip", "forwarded", "true-client-ip", "via", "x-client-ip", "x-real-ip"}
)


def is_from_here(address: str | None, headers: Iterable[str], host: str) -> bool:
    """Whether a request was made on this machine, as far as its peer and its headers tell.

    ``address`` is the peer's, ``headers`` are the names of all headers, ``host`` is what the one
    of that name says. A proxy on this machine that adds no header of its own cannot be told from a
    local caller: behind one, an authorizer is needed.
    """
    return (
        address is not None
        and _is_loopback(address)
        and not any(map(_tells_of_proxy, headers))
        and _is_local_name(_name_in(host))
    )


def _tells_of_proxy(header: str) -> bool:
    name = header.lower()
    return name in _PASSED_ON or name.startswith("x-forwarded-")


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def _name_in(host: str) -> str:
    """A host without its port, and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_local_name(name: str) -> bool:
    """Whether no name server outside could have sent a browser here under this name."""
    name = name.rstrip(".").lower()
    return name.endswith(".localhost") or _is_loopback(name) or not {*name} & {".", ":"}
