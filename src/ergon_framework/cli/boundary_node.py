"""How commands reach a running node: the options they share, and the calls they make."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.command_run import ConfigPath, finite
from ergon_framework.cli.output import waiting

if TYPE_CHECKING:
    from ergon_framework.boundary.client.transport import Transport

CORE, ADMIN = "bsfg.v1.Boundary/", "bsfg.v1.BoundaryAdmin/"

ZoneName = Annotated[
    str | None,
    typer.Option(
        "--zone",
        metavar="NAME",
        help="The name of the zone [default: the only one in the settings].",
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Read this folder instead of asking a node. Nothing in it is changed.",
    ),
]
NodeUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=(
            "The URL of the node [default: where the zone of the settings listens, or "
            "127.0.0.1:9443]."
        ),
    ),
]
Cert = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="Your own certificate for TLS (PEM).")
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="The private key of --cert (PEM).")
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="The authority that signs the other side's certificate (PEM)."
    ),
]
Crl = Annotated[
    Path | None,
    typer.Option(
        "--crl", metavar="FILE", help="The authority's list of revoked certificates (PEM)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="S", min=0.1, callback=finite, help="Seconds to wait for an answer."
    ),
]

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "url": (NodeUrl, None),
    "config": (ConfigPath, None),
    "zone": (ZoneName, None),
    "cert": (Cert, None),
    "key": (Key, None),
    "ca": (Ca, None),
    "timeout": (Timeout, 30.0),
}


class NodeClient:
    """A node as one command talks to it; nothing is looked up or sent before the first call."""

    def __init__(
        self,
        *,
        url: str | None = None,
        config: Path | None = None,
        zone: str | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        ca: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._url, self._config, self._zone = url, config, zone
        self._files = {"cert": cert, "key": key, "ca": ca}
        self.timeout = timeout
        self._transport: Transport | None = None

    @property
    def transport(self) -> Transport:
        """The connection, made when first asked for."""
        if self._transport is None:
            from ergon_framework.app.node import reach_node
            from ergon_framework.boundary.client.options import TlsOptions

            files = {name: path and str(path) for name, path in self._files.items()}
            given = TlsOptions(**files)  # type: ignore[typeddict-item]
            self._transport = reach_node(self.timeout, self._config, self._zone, self._url, given)
        return self._transport

    def send(self, method: str, body: bytes, *, wait: float = 0.0) -> Any:
        """The answer to a request as it is; ``wait`` is what the node may wait, in seconds."""
        with waiting("waiting for the node"):
            answer = self.transport.call(method, body, timeout=self.timeout + wait)
        return json.loads(answer)

    def ask(self, method: str, **fields: Any) -> Any:
        """The answer to a request of these fields; those that are None are left out."""
        return self.send(method, request(**fields))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def request(**fields: Any) -> bytes:
    """The body of a request; fields that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(given).encode()


def asks_node(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command, whose first parameter is a ``NodeClient``, the options that say which node.

    Every command has the same ones, so they are written down once; Typer reads the signature.
    """
    # eval_str: with postponed annotations they are texts, which Typer would look up in this module.
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    parameters = [*(each.replace(kind=keyword) for each in own), *added]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        node = NodeClient(**{name: given.pop(name) for name in _OPTIONS})
        try:
            return command(node, **given)
        finally:
            node.close()

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
