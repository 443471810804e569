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
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Annotated, Any

from ergon_framework.app.application import App
from ergon_framework.errors import MissingExtraError, StoreUnavailableError, WiringError
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.client import JobClient
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
"""The name of the App in the state of the server: ``request.state.ergon``."""

State = Mapping[str, Any]
Inner = (
    Callable[[Any], AbstractAsyncContextManager[State]]
    | Callable[[Any], AbstractAsyncContextManager[None]]
)


def lifespan(
    app: App, inner: Inner | None = None
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """A lifespan for FastAPI or Starlette that opens the App's store, and closes it at the end.

    ``inner`` is a lifespan of your own, which is entered afterwards. Settings that are wrong keep
    the server from starting. A store on a server that does not answer does not: it is opened by
    the first request that needs it. Servers of one process may share an App: the store is closed
    when the last of them ends.
    """
    _check_app("lifespan", app)

    @asynccontextmanager
    async def opened(server: Any) -> AsyncIterator[State]:
        used = ExitStack()
        used.enter_context(app)
        try:
            # In a thread, as both may take long: the event loop may have other servers to run.
            await asyncio.to_thread(_open, app)
            if inner is None:
                yield {STATE: app}
            else:
                async with inner(server) as state:
                    yield {**(state or {}), STATE: app}
        finally:
            await asyncio.to_thread(used.close)

    return opened


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
"""The same with ``async``: ``async def look(job_id: str, client: AsyncClient)``."""


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
