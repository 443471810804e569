"""The application behind ``ergon serve``, by itself or under uvicorn.

``create_app`` is for a server of your own; ``serve`` runs it in this process until a signal.
FastAPI and uvicorn are imported inside the functions, as they belong to an extra.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ergon_framework.app.settings import Settings, check_server_packages, revealed
from ergon_framework.app.settings.sections import ProxySettings, ServerSettings
from ergon_framework.app.signals import SignalListener, StopSignals
from ergon_framework.boundary.http.addresses import bound_sockets, is_loopback
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.web.tokens import FileTokens, Tokens

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp
    from uvicorn import Server

    from ergon_framework.web.backends import Backends
    from ergon_framework.web.webhooks import ServedWebhook


def create_app(
    store: str | ProviderStore | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
) -> FastAPI:
    """Make an application that shows the state of everything in the ``settings``.

    ``store`` is the URL of another store than theirs, or a store of provider calls alone. With a
    ``token``, here or in the settings, every request but the probes needs ``Authorization: Bearer
    <token>``; without one only callers on this machine are answered. People can sign in to the
    console if the settings have a ``session_key``, in any number of processes. A store that cannot
    be reached is tried again with every request.
    """
    check_server_packages()
    from ergon_framework.app.settings.tokens import parsed
    from ergon_framework.web.backends import PROVIDERS, Backends, ProviderBackend, backends_of
    from ergon_framework.web.routes import build_app, server_plan
    from ergon_framework.web.sessions import sessions_of
    from ergon_framework.web.tokens import FixedTokens

    known = settings or Settings()
    named = token or revealed(known.server.token)
    tokens = FixedTokens(parsed(named, "the token")) if named else None
    if store is None or isinstance(store, str):
        backends = backends_of(known, store)
    else:
        backends = Backends(providers={PROVIDERS: ProviderBackend(store)})
    # No sign-in link is printed here, and a server of your own may have several processes.
    is_shared = known.server.session_key is not None
    can_sign_in = is_shared and (tokens is not None or known.server.proxy is not None)
    sessions = sessions_of(known.server, tokens) if can_sign_in else None
    return build_app(server_plan(known.server, backends, tokens, sessions=sessions))


SHUTDOWN_GRACE = 10
"""Seconds that running requests have to end after a stop was asked for."""


def check_place(host: str, tokens: Tokens | None, proxy: ProxySettings | None = None) -> None:
    """Refuse an address that other machines can reach if neither a token nor a proxy identifies
    callers.
    """
    if tokens is None and proxy is None and not is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and there is no token",
            remedy="give --token-file, set ERGON_SERVER_TOKEN or write token under [server],"
            " or listen on 127.0.0.1",
        )


def serve(
    server: ServerSettings,
    backends: Backends,
    tokens: Tokens | None,
    ready: Callable[[str], None],
    issue_login_link: Callable[[str], None] = lambda _link: None,
    webhooks: Sequence[ServedWebhook] = (),
) -> None:
    """Serve until a signal asks to stop. ``ready`` is called with the URL, which has the real port.

    ``webhooks`` are answered without a token, and closed at the end. Without tokens,
    ``issue_login_link`` is called with a link that signs one browser in as operator, and again with
    another link when that was used. The first signal lets running requests finish; a second one
    ends the process at once.
    """
    check_server_packages()
    check_place(server.host, tokens, server.proxy)
    from ergon_framework.web.middleware import SIGN_IN
    from ergon_framework.web.routes import build_app, server_plan
    from ergon_framework.web.sessions import sessions_of
    from ergon_framework.web.webhooks import WithWebhooks

    # Host names are checked only on loopback, against DNS rebinding. Elsewhere a server has many
    # names, and a token is required.
    names = server.names if is_loopback(server.host) else None
    sessions = sessions_of(server, tokens)
    plan = server_plan(server, backends, tokens, names, sessions)
    app = WithWebhooks(build_app(plan), webhooks)
    # Bound here and not by uvicorn: a port that is taken then raises an error with a remedy, and
    # the real port is known before the server runs.
    sockets = bound_sockets(server.host, server.port)
    # Connections that it accepts inherit this: a body does not wait until the head is acknowledged.
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = f"http://{host}:{sockets[0].getsockname()[1]}"

    def print_login_link() -> None:
        if tokens is None and server.proxy is None:
            issue_login_link(f"{url}{SIGN_IN}?once={sessions.issue_login_link()}")

    def begin() -> None:
        ready(url)
        print_login_link()

    sessions.when_used = print_login_link

    async def end() -> None:
        for each in webhooks:
            await each.aclose()

    running = _server(app, begin, end)

    def stop(_count: int) -> None:
        plan.stopping.set()
        running.should_exit = True

    stops = StopSignals(stop, force_at=2, last_words="stopped by force")
    with closing(backends), _reload_on_hangup(tokens), SignalListener(stops.take):
        running.run(sockets)


@contextmanager
def _reload_on_hangup(tokens: Tokens | None) -> Iterator[None]:
    """Read a file of tokens again on SIGHUP. Without such a file, SIGHUP does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(_number: int, _frame: object) -> None:
        if isinstance(tokens, FileTokens):
            tokens.expire()

    before = signal.signal(signal.SIGHUP, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before or signal.SIG_DFL)


def _server(
    app: ASGIApp, ready: Callable[[], None], ended: Callable[[], Awaitable[None]]
) -> Server:
    import uvicorn

    from ergon_framework.web.middleware import MAX_HEAD
    from ergon_framework.web.protocol import LimitedProtocol

    class Ours(uvicorn.Server):
        """uvicorn's server, which reports when it listens and leaves signals to ``SignalListener``.

        uvicorn raises a signal again once it has stopped, and the process would end by that signal
        instead of with exit code 0.
        """

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready()

        async def shutdown(self, sockets: Any = None) -> None:
            await super().shutdown(sockets)
            await ended()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        # For requests that arrive slowly; LimitedProtocol handles the rest.
        h11_max_incomplete_event_size=MAX_HEAD,
        log_config=None,  # Its records go where those of Ergon go.
        access_log=False,  # No access log, because a URL may name a tenant.
        proxy_headers=False,  # A header cannot claim that a request comes from this machine.
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_GRACE,
    )
    return Ours(config)
