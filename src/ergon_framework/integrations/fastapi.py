"""Jobs in FastAPI and Starlette: a lifespan, clients as dependencies, and routes to look at them.

::

    jobs = App()
    api = FastAPI(lifespan=lifespan(jobs))
    api.mount("/ergon", routes(jobs))


    @api.post("/pictures")
    async def upload(path: str) -> str:
        return await shrink.aenqueue(path)


    @api.get("/jobs/{job_id}")
    def look(job_id: str, client: Client) -> str:
        return client.status(job_id)

The handlers run in workers, which are processes of their own; a server only enqueues and asks.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ergon_framework.app.application import App
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    LifespanTimeoutError,
    MissingExtraError,
    StoreUnavailableError,
    WiringError,
)
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.lifespan import (
    SHUTDOWN_TIMEOUT,
    STARTUP_TIMEOUT,
    checked_limits,
    place_of,
)
from ergon_framework.web.application import create_app

try:
    from fastapi import Depends, FastAPI
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise MissingExtraError(
        "ergon_framework.integrations.fastapi needs FastAPI",
        remedy="pip install 'ergon-framework[api]'",
    ) from error

__all__ = [
    "AsyncClient",
    "Client",
    "get_app",
    "get_async_client",
    "get_client",
    "lifespan",
    "routes",
]

logger = logging.getLogger("ergon.integrations.fastapi")

STATE = "ergon"
"""The name of the App in the server's state: ``request.state.ergon``."""

State = Mapping[str, Any]
Inner = (
    Callable[[Any], AbstractAsyncContextManager[State]]
    | Callable[[Any], AbstractAsyncContextManager[None]]
)


def lifespan(
    app: App,
    inner: Inner | None = None,
    *,
    startup_timeout: float | None = STARTUP_TIMEOUT,
    shutdown_timeout: float | None = SHUTDOWN_TIMEOUT,
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """A lifespan for FastAPI or Starlette that opens the App's store, and closes it at the end.

    ``inner`` is a lifespan of your own, which is entered afterwards. Settings that are wrong keep
    the server from starting. A store on a server that does not answer does not: it is opened by
    the first request that needs it. Servers of one process may share an App: the store is closed
    when the last of them ends.

    The store, and your lifespan, have so many seconds each to open, and to close; None: as long as
    they like. Then the server ends with a ``LifespanTimeoutError`` that names what hangs.
    """
    _check_app("lifespan", app)
    limits = {"startup_timeout": startup_timeout, "shutdown_timeout": shutdown_timeout}
    checked_limits("lifespan", limits)

    @asynccontextmanager
    async def opened(server: Any) -> AsyncIterator[State]:
        # An App counts its users and closes its store with the last one. The exit stack is one use,
        # entered before anything can fail.
        used = ExitStack()
        used.enter_context(app)
        store = _Hanging("the job store of the App", startup_timeout, shutdown_timeout)
        is_open = False
        try:
            # In a thread, because both may take long and the event loop may have other servers to
            # run.
            async with store.opening():
                await _in_thread(partial(_open, app))
            is_open = True
            if inner is None:
                yield {STATE: app}
            else:
                async with _bounded(inner, server, startup_timeout, shutdown_timeout) as state:
                    yield {**(state or {}), STATE: app}
        finally:
            if is_open:
                async with store.closing():
                    await _in_thread(used.close)
            else:  # What hangs while it is opened cannot be closed first.
                SYSTEM_CLOCK.spawn("ergon-lifespan", used.close)

    return opened


@dataclass(frozen=True)
class _Hanging:
    """Something that may hang when it is opened or closed."""

    name: str
    startup: float | None
    shutdown: float | None
    place: str = ""

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[None]:
        """Limit the time of opening it."""
        async with self._within(self.startup, "was not open", "startup_timeout"):
            yield

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Limit the time of closing it."""
        async with self._within(self.shutdown, "was not closed", "shutdown_timeout"):
            yield

    @asynccontextmanager
    async def _within(self, seconds: float | None, what: str, option: str) -> AsyncIterator[None]:
        # In the task of the server, because a lifespan may have scopes that no other task may
        # leave.
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise LifespanTimeoutError(
                f"{self.name} {what} within {seconds:g} s",
                remedy=f"see what it waits for{self.place}; if it needs longer, write"
                f" lifespan(app, …, {option}={10 * (seconds or 0.0):g})",
            ) from error


@asynccontextmanager
async def _bounded(
    inner: Inner, server: Any, startup: float | None, shutdown: float | None
) -> AsyncIterator[State | None]:
    """The user's lifespan with its time limits."""
    function = inspect.unwrap(inner)
    name = getattr(function, "__name__", type(inner).__name__)
    place = place_of(function)
    hanging = _Hanging(f"the lifespan {name!r}", startup, shutdown, place and f", in {place}")
    # Entered and left by hand, because each of the two has a time limit and what runs in between
    # has none.
    whole = inner(server)
    async with hanging.opening():
        state = await whole.__aenter__()
    try:
        yield state
    except BaseException as error:
        async with hanging.closing():
            is_handled = await whole.__aexit__(type(error), error, error.__traceback__)
        if not is_handled:
            raise
    else:
        async with hanging.closing():
            await whole.__aexit__(None, None, None)


async def _in_thread(work: Callable[[], None]) -> None:
    """Wait for work in a thread that does not keep the process alive when it hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.done():  # Nobody waits for it any more.
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    context = contextvars.copy_context()

    def run() -> None:
        error: BaseException | None = None
        try:
            context.run(work)
        except BaseException as raised:  # It is raised where it is awaited.
            error = raised
        # The server gave up on this thread and ended, so nobody is left to receive the result.
        with suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(tell, error)

    SYSTEM_CLOCK.spawn("ergon-lifespan", run)
    await done


def _check_app(name: str, app: object) -> None:
    if not isinstance(app, App):
        raise WiringError(
            f"{name} takes an App, not {type(app).__name__}",
            remedy=f"make one at the top of the file, jobs = App(), and write {name}(jobs)",
        )


def _open(app: App) -> None:
    try:
        app.async_client  # noqa: B018 - opens the store, also that of app.client
    except StoreUnavailableError as error:
        logger.warning("the server starts without its job store: %s", error)


# ---- dependencies ----


def get_app(connection: HTTPConnection) -> App:
    """The App that the server's lifespan has opened."""
    app = getattr(connection.state, STATE, None)
    if not isinstance(app, App):
        raise WiringError(
            "this server has no App: its lifespan was not run",
            remedy="write FastAPI(lifespan=lifespan(app)); in a test, with TestClient(api):",
        )
    return app


def get_client(app: Annotated[App, Depends(get_app)]) -> JobClient:
    """The client for endpoints without ``async``, which FastAPI runs in threads."""
    return app.client


async def get_async_client(app: Annotated[App, Depends(get_app)]) -> AsyncJobClient:
    """The client for endpoints with ``async``."""
    return app.async_client


Client = Annotated[JobClient, Depends(get_client)]
"""A parameter of an endpoint without ``async``: ``def look(job_id: str, client: Client)``."""
AsyncClient = Annotated[AsyncJobClient, Depends(get_async_client)]
"""A parameter of an endpoint with ``async``: ``async def look(job_id: str, client:
AsyncClient)``.
"""


# ---- health and metrics ----


def routes(app: App, *, token: str | None = None) -> FastAPI:
    """Probes, metrics for Prometheus and JSON about jobs: what ``ergon serve`` answers.

    Mount it: ``api.mount("/ergon", routes(jobs))`` gives ``/ergon/live``, ``/ergon/ready``,
    ``/ergon/metrics`` and ``/ergon/api/v1/…``. All but the probes need ``token``, here or under
    ``[server]`` in the settings, as a bearer token; without one only callers on this machine are
    answered.
    """
    _check_app("routes", app)
    return create_app(token=token, settings=app.settings)
