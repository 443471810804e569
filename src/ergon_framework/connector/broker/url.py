"""The URL of a broker, taken apart. Nothing here shows a user or a password."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, unquote

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.urls import (
    is_torn,
    refuse_undecodable,
    refuse_unreadable,
    refuse_withheld,
)

ENCODED = "write @, :, /, ? and # in a user or a password as %40, %3A, %2F, %3F and %23"
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """The address of a broker, and the credentials for it."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    """What follows the host, without its first slash: a database, a virtual host, a queue."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name of the broker in errors, logs and health."""
        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}"

    @property
    def host(self) -> str:
        """The first host."""
        return self.hosts[0][0]

    @property
    def port(self) -> int:
        """The port of the first host."""
        return self.hosts[0][1]

    @classmethod
    def of(cls, url: str, *, port: int, schemes: Iterable[str], example: str) -> BrokerUrl:
        """Take a URL apart; nothing is opened.

        ``port`` is that of a host that names none, and ``example`` what the remedy shows.
        """
        refuse_withheld(url)
        wrong = ConfigurationError(
            "the URL of the connector cannot be read", remedy=f"write {example}; {ENCODED}"
        )
        if not isinstance(url, str):
            raise ConfigurationError(
                f"the URL of a connector is text, not {type(url).__name__}",
                remedy=f"write {example}; if it comes from a variable, see that it is set",
            )
        refuse_undecodable(url, "the connector")
        scheme, mark, rest = url.partition("://")
        scheme = scheme.lower()
        if not mark or "#" in rest or is_torn(rest) or scheme not in schemes:
            raise wrong
        place, _, query = rest.partition("?")
        netloc, _, path = place.partition("/")
        login, _, hosts = netloc.rpartition("@")
        user, colon, password = login.partition(":")
        try:
            places = tuple(_place(each, port) for each in hosts.split(","))
        except ValueError:  # its text may hold the password
            raise wrong from None
        return cls(
            scheme,
            places,
            unquote(path),
            unquote(user) or None,
            unquote(password) if colon else None,
            dict(parse_qsl(query, keep_blank_values=True)),
        )

    def refuse_query(self, maker: str) -> None:
        """Refuse options in a URL that was handed to the class itself."""
        if self.query:
            raise ConfigurationError(
                f"{maker} takes its options as arguments, and its URL has"
                f" {', '.join(sorted(self.query))}",
                remedy="write from ergon_framework.connector import from_url, and from_url(URL)",
            )


def tls_files(
    url: BrokerUrl,
    secure: Iterable[str],
    *,
    ca: str | None,
    cert: str | None,
    key: str | None,
) -> bool:
    """Whether the scheme asks for TLS; files of certificates without it are refused."""
    has_tls = url.scheme in secure
    if not has_tls and (ca or cert or key):
        raise ConfigurationError(
            f"ca, cert and key are for TLS, and {url.scheme}:// does without",
            remedy=f"write {' or '.join(f'{each}://' for each in secure)}, or leave the files out",
        )
    if (cert is None) != (key is None):
        raise ConfigurationError(
            "cert and key belong together, and one of them is missing",
            remedy="name the file of the certificate and that of its key, or neither",
        )
    refuse_unreadable(ca=ca, cert=cert, key=key)
    return has_tls


def import_client(module: str, *, extra: str, connector: str) -> Any:
    """A client library of an extra; without it the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"the connector {connector} needs {package}, which is not installed",
            remedy=f"pip install 'ergon-framework[{extra}]'",
        ) from error


def _place(text: str, default: int) -> tuple[str, int]:
    if text.startswith("["):  # an IPv6 address
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    number = int(port) if port else default
    if not 0 < number <= MAX_PORT or ":" in port:
        raise ValueError("no port")
    return host or "localhost", number


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
