"""A server in this process: where it listens, who may be let in, how it stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ergon_framework.app.exit_codes import of_signal
from ergon_framework.app.shutdown import say
from ergon_framework.app.signals import SignalEar
from ergon_framework.boundary.http.client_endpoint import is_loopback
from ergon_framework.boundary.http.listening import bound_sockets
from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.providers.stores import open_store
from ergon_framework.web.application import create_app

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Server

PORT = 8400
GRACE = 10
"""Seconds that running requests have to end when a stop is asked for."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen, and what for."""

    store: str
    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.host} can be reached from other machines, and there is no token",
                remedy="give --token-file or set ERGON_SERVER_TOKEN, or listen on 127.0.0.1",
            )


def serve(settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Answer until a signal asks to stop; ``ready`` is told the URL, with the real port.

    The first signal lets running requests finish; a second one ends the process at once.
    """
    uvicorn = _uvicorn()
    app = create_app(settings.store, token=settings.token)
    sockets = bound_sockets(settings.host, settings.port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{sockets[0].getsockname()[1]}"
    server = _server(uvicorn, app, lambda: ready(url))
    with closing(open_store(settings.store)), SignalEar(_Stops(server).heard):
        server.run(sockets)


class _Stops:
    """The first signal asks for a graceful stop, the second ends the process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def heard(self, number: int) -> None:
        if self._server.should_exit:
            say("ergon: stopped by force")
            os._exit(of_signal(number))
        say("ergon: stopping; what runs may finish (a second signal ends it at once)")
        self._server.should_exit = True


def _server(uvicorn: Any, app: FastAPI, ready: Callable[[], None]) -> Server:
    class Ours(uvicorn.Server):  # type: ignore[misc]
        """Tells when it listens, and leaves signals to us: to it, a stop is a failure."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        log_config=None,  # its records go where ours go
        access_log=False,  # a URL names a tenant
        proxy_headers=False,  # nobody's word is taken for where a request comes from
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=GRACE,
    )
    server: Server = Ours(config)
    return server


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(
            "the server needs uvicorn", remedy="pip install 'ergon-framework[api]'"
        ) from error
    return uvicorn
