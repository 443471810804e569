"""Who may read provider health: callers that the host's authorizer admits, or local ones."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import Request

Authorize = Callable[["Request", str], bool | Awaitable[bool]]
"""Whether a request may read a tenant's summary: ``True``, and nothing else, is a yes.

It gets the tenant as a lower-case uuid. One that takes a single argument gets the tenant if that is
its name, and the request otherwise. One that is not async runs on a thread. If it raises an
``HTTPException``, that is the answer; any other exception is a no.
"""

_PASSED_ON = frozenset(
    {"cf-connecting-ip", "forwarded", "true-client-ip", "via", "x-client-ip", "x-real-ip"}
)


def as_authorizer(authorize: Any) -> Authorize | None:
    """Called with a request and a tenant, or with the one of them that it takes."""
    if authorize is None:
        return None
    remedy = "give a function authorize(request, tenant_id) that returns True or False"
    if not callable(authorize):
        raise ConfigurationError("authorize must be a function", remedy=remedy)
    try:
        signature = inspect.signature(authorize)
    except (ValueError, TypeError):  # some of those written in C have none
        return authorize  # type: ignore[no-any-return]
    if _takes(signature, 2):
        return authorize  # type: ignore[no-any-return]
    if not _takes(signature, 1):
        raise ConfigurationError(
            f"authorize{signature} cannot be called with a request and a tenant", remedy=remedy
        )
    if "tenant" in next(iter(signature.parameters)):
        return lambda _, tenant_id: authorize(tenant_id)
    return lambda request, _: authorize(request)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def is_local_request(address: str | None, headers: Iterable[str], host: str) -> bool:
    """Whether a request was made on this machine, by its peer address and its headers.

    ``address`` is the peer's, ``headers`` are the names of all headers, ``host`` is what the one of
    that name says. A proxy on this machine that adds no header of its own looks like a local
    caller: behind one, an authorizer is needed.
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
