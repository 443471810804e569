"""Addresses of servers: how they are written, which stay on this machine, and binding them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from ergon_framework.errors import ConfigurationError

BACKLOG = 512  # connections that may wait to be accepted
_PROBLEMS = {
    errno.EADDRINUSE: ("another process listens there", "stop it, or choose another port"),
    errno.EACCES: ("this user may not use that port", "choose a port above 1023"),
    errno.EPERM: ("this user may not use that port", "choose a port above 1023"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "choose one of its own addresses"),
    errno.EAFNOSUPPORT: ("this machine does not speak that protocol", "choose an IPv4 address"),
}


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9443``, ``localhost:0`` or ``[::1]:9443``."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_port = port.isascii() and port.isdigit() and int(port) < 65536
    if not (colon and bare and is_port) or (":" in bare) is not is_bracketed:
        raise ConfigurationError(
            f"{text!r} is no address to listen on",
            remedy="write HOST:PORT, for example 127.0.0.1:9443 or [::1]:9443",
        )
    return bare, int(port)


def host_name(header: str) -> str:
    """The name in a Host header, in small letters and without the port; empty if there is none."""
    name = header.strip().lower()
    if name.startswith("["):
        bare, bracket, rest = name[1:].partition("]")
        return bare if bracket and (not rest or rest.startswith(":")) else ""
    bare = name.rpartition(":")[0] if ":" in name else name
    return "" if ":" in bare else bare.rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_plaintext(host: str, insecure: bool) -> None:
    """Refuse plain HTTP, unless it was asked for and stays on this machine."""
    if not insecure:
        raise ConfigurationError(
            f"there are no certificates for listening on {host}",
            remedy="give cert, key and ca, or ask for insecure on a loopback address",
        )
    if not all(ipaddress.ip_address(address[0]).is_loopback for *_, address in _resolved(host, 0)):
        raise ConfigurationError(
            f"plain HTTP is spoken on a loopback address only, and {host} is none",
            remedy="listen on 127.0.0.1 or [::1], or give cert, key and ca",
        )


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of ``host``, all on one port."""
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in _resolved(host, port):
            if sockets:
                # The system chose a port for the first address: the others have to be on the same
                # one.
                port = sockets[0].getsockname()[1]
            sockets.append(_bound(family, (address[0], port, *address[2:])))
    except OSError as error:
        for each in sockets:
            each.close()
        raise _explained(host, port, error) from error
    return sockets


_Info = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, ...]]


def _resolved(host: str, port: int) -> list[_Info]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"{host!r} is not the name of an address of this machine",
            remedy="check the spelling, or write the address in numbers",
        ) from error
    # A name may stand twice in the hosts file: the second socket would find its port taken.
    return list(dict.fromkeys(infos))  # type: ignore[arg-type]


def _bound(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Each address has a socket of its own: otherwise `::` would take the port for IPv4,
            # too.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # at once: a bound port that does not listen may be taken by another
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _explained(host: str, port: int, error: OSError) -> ConfigurationError:
    number = error.errno or 0
    why, remedy = _PROBLEMS.get(number, (os.strerror(number).lower(), "choose another address"))
    host_text = f"[{host}]" if ":" in host else host
    return ConfigurationError(f"cannot listen on {host_text}:{port}: {why}", remedy=remedy)
