"""The options of an HTTP connector, checked before any request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ergon_framework.connector.broker.url import BrokerUrl
from ergon_framework.connector.http.client import ClientRules
from ergon_framework.connector.http.page import PageRules, path_of
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.urls import refuse_unreadable

POLL, POST = "poll+", "post+"
_EXAMPLES = {
    POLL: "poll+https://host/orders?items=data&state=polls.db",
    POST: "post+https://host/orders?timeout=10",
}
_METHODS = ("POST", "PUT", "PATCH")
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
RESERVED = _OWN_HEADERS | {
    *("authorization", "cookie", "expect", "keep-alive", "proxy-authorization", "te", "trailer"),
    *("upgrade", "webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256"),
}
"""Headers that a transaction cannot set."""
_FORMATS = ("json", "lines")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an API, and the credentials for it."""

    url: str = field(repr=False)
    """The URL with its query and without credentials."""
    name: str
    """The URL for logs and errors: without the query."""
    login: tuple[str, str] | None = field(repr=False)


def address_of(url: Any, query: Any, prefix: str = POLL) -> Address:
    """The URL of an API, taken apart. Options were taken out of its query before."""
    plain = url.lower().startswith(("http://", "https://")) if isinstance(url, str) else False
    given, example = f"{prefix}{url}" if plain else url, _EXAMPLES[prefix]
    schemes = [f"{prefix}http", f"{prefix}https"]
    place = BrokerUrl.of(given, port=_port(given), schemes=schemes, example=example)
    if len(place.hosts) != 1:
        raise ConfigurationError("the URL of an API has one host", remedy=f"write {example}")
    if not plain:
        place.refuse_query("the connector")
    if not isinstance(query, str) or query.startswith("?"):
        raise ConfigurationError(
            "query is the text that follows the question mark", remedy="as in status=open&limit=100"
        )
    scheme = place.scheme.removeprefix(prefix)
    parts = urlsplit(given[len(prefix) :])
    host = f"[{place.host}]" if ":" in place.host else place.host
    port = "" if place.port == _PORTS[scheme] else f":{place.port}"
    own = "&".join(each for each in (parts.query, query) if each)
    path = parts.path or "/"
    name = f"{scheme}://{host}{port}{path}"
    _refuse_unusual_url(path + own)
    return Address(f"{name}{'?' if own else ''}{own}", name, _login(place))


def page_rules(given: Mapping[str, Any]) -> PageRules:
    """Where the items, ids and links of an answer are, and how large it may be."""
    if given["format"] not in _FORMATS:
        raise ConfigurationError("format is json or lines", remedy="leave it out for json")
    if given["again"] not in ("last", "first"):
        raise ConfigurationError("again is last or first", remedy="leave it out for last")
    if not 0 < len(given["consumer"]) <= 100:
        raise ConfigurationError("consumer is a name of 1 to 100 characters")
    ids = given["ids"]
    if ids and not all(each.strip() for each in ids.split(",")):
        raise ConfigurationError("ids names an empty path", remedy="as in ids=id or ids=id,version")
    correlation, since = given["correlation"], given["since_field"]
    return PageRules(
        items=path_of(given["items"]),
        ids=tuple(path_of(each.strip()) for each in ids.split(",")) if ids else (),
        payload=path_of(given["payload"]),
        correlation=None if correlation is None else path_of(correlation),
        since=None if since is None else path_of(since),
        is_lines=given["format"] == "lines",
        max_item_bytes=given["max_message_bytes"],
    )


def post_rules(given: Mapping[str, Any]) -> None:
    """Refuse options of a posting connector that contradict each other."""
    if given["method"] not in _METHODS:
        raise ConfigurationError("method is POST, PUT or PATCH", remedy="leave it out for POST")
    for name in ("id_header", "correlation_header"):
        if not isinstance(given[name], str) or not is_header_name(given[name]):
            raise ConfigurationError(f"{name} is no name of a header", remedy="correct it")
    provider = given["provider"]
    if provider is not None and not callable(getattr(provider, "async_transport", None)):
        raise ConfigurationError(
            "provider is an object that App.provider or Provider made",
            remedy='pass it in Python; in the settings write provider = "module:name"',
        )


def is_header_name(name: str) -> bool:
    """Whether a header of a request may have this name."""
    return bool(_NAME.fullmatch(name)) and name.lower() not in _OWN_HEADERS


def client_rules(given: Mapping[str, Any], address: Address) -> ClientRules:
    """How requests are made, with the headers that have credentials in them."""
    headers = {"accept": "application/json", "accept-encoding": "gzip"}
    extra = given["headers"]
    if extra is not None and not isinstance(extra, Mapping):
        raise ConfigurationError(
            "headers maps names to texts", remedy='headers = { "X-Api-Key" = "env:API_KEY" }'
        )
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or not is_header_name(name):
            raise ConfigurationError(
                "headers has a name that is no header of a request", remedy="correct its name"
            )
        headers[name.lower()] = header_value(f"headers.{name}", value)
    if given["token"] is not None:
        token = header_value("token", given["token"])
        if address.login is not None or "authorization" in headers:
            raise ConfigurationError(
                "token= and a user in the URL, or a header Authorization, are two answers to who"
                " asks",
                remedy="give one of them",
            )
        headers["authorization"] = f"Bearer {token}"
    ca = given["ca"]
    if ca is not None and not address.url.startswith("https:"):
        raise ConfigurationError("ca is for https", remedy="write poll+https://, or leave ca= out")
    refuse_unreadable(ca=ca)
    return ClientRules(headers, address.login, given["timeout"], given["max_page_bytes"], ca)


def header_value(name: str, value: Any) -> str:
    """The value of a header. It may be a secret, so no error shows it."""
    if not isinstance(value, str) or not value.strip() or not _VALUE.fullmatch(value):
        raise ConfigurationError(
            f"{name} is empty, or no text of visible ASCII",
            remedy="see that the variable is set, and that no line end is in it",
        )
    return value.strip()


def _port(url: Any) -> int:
    scheme = url.partition("://")[0].lower() if isinstance(url, str) else ""
    return _PORTS.get(scheme.rpartition("+")[2], 443)


def _login(place: BrokerUrl) -> tuple[str, str] | None:
    if place.user is None and place.password is None:
        return None
    return place.user or "", place.password or ""


def _refuse_unusual_url(text: str) -> None:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(
            "the path or the query of the URL has a character that URLs do not have",
            remedy="percent-encode it: a space is %20",
        )
