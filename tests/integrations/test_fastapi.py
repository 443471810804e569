"""FastAPI with jobs: the example project under uvicorn, and its parts inside this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from ergon_framework import App
from ergon_framework.errors import (
    ConfigurationError,
    LifespanTimeoutError,
    MissingExtraError,
    WiringError,
)
from ergon_framework.integrations.fastapi import Client, lifespan, routes
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.ports.jobstore import Search
from ergon_framework.testing import Sandbox
from tests.docs.programs import run_python
from tests.integrations.programs import copied, served, started
from tests.servers.server import free_port
from tests.waiting import until

with warnings.catch_warnings():  # it would like another client, which few people have yet
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

MODULE = "ergon_framework.integrations.fastapi"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The example under uvicorn, and a worker beside it."""
    folder = copied("fastapi_shop", tmp_path_factory.mktemp("fastapi"))
    uvicorn = ("-m", "uvicorn", "shop:api", "--port", "0")
    one = "import shop; shop.jobs.run(processes=1)"  # each process takes a second to start
    with served(folder, *uvicorn) as client, started(folder, "-c", one):
        yield client


@pytest.mark.slow
def test_an_order_over_http_is_shipped_by_a_worker(shop: httpx.Client) -> None:
    """Enqueued by an async endpoint, run by another process, asked for by both kinds."""
    answer = shop.post("/orders/o1", params={"express": True})
    assert answer.status_code == 202
    job = answer.json()["job"]
    result = shop.get(f"/jobs/{job}/result").json()
    assert result == {"result": "o1 is on a plane"}
    assert shop.get(f"/jobs/{job}").json() == {"status": "completed"}
    assert shop.get("/jobs/nobody").status_code == 404


@pytest.mark.slow
def test_probes_and_metrics_are_mounted(shop: httpx.Client) -> None:
    """They tell about the jobs of this project."""
    text = shop.get("/ergon/metrics").text
    assert shop.get("/ergon/ready").json() == {"status": "ready"}
    assert 'ergon_part_up{part="jobs"} 1' in text
    assert "ergon_workers_alive 1" in text
    assert shop.get("/ergon/api/v1/workers").json()["items"]


# ---- inside this process ----


@pytest.fixture
def jobs(tmp_path: Path) -> App:
    """An App with one handler."""
    app = App(f"sqlite:///{tmp_path}/work.db", name="shop")
    app.job("note")(lambda text: text)
    return app


def test_a_lifespan_of_ones_own_goes_on_inside(jobs: App) -> None:
    """Both leave their values in the state; ours is open before theirs and closed after it."""
    seen: list[str] = []

    @asynccontextmanager
    async def own(server: FastAPI) -> AsyncIterator[dict[str, Any]]:
        job = await jobs.async_client.enqueue("shop#note", ["begun"])
        seen.append(await job.status())
        yield {"words": ["hello"]}
        seen.append(await job.status())

    api = FastAPI(lifespan=lifespan(jobs, own))

    @api.get("/")
    def words(request: Request, client: Client) -> list[str]:
        client.enqueue("shop#note", ["asked"])
        found: list[str] = request.state.words
        return found

    with TestClient(api) as http:
        assert http.get("/").json() == ["hello"]
    assert seen == ["pending", "pending"]


def test_servers_that_share_an_app_share_its_store_to_the_end_of_the_last(jobs: App) -> None:
    """The one that ends first does not close it under a request of the other."""
    first, second = FastAPI(lifespan=lifespan(jobs)), FastAPI(lifespan=lifespan(jobs))

    @second.post("/{text}")
    def note(text: str, client: Client) -> str:
        return client.enqueue("shop#note", [text])

    with TestClient(second) as other:
        with TestClient(first):
            before = jobs.client
            other.post("/one")
        before.enqueue("shop#note", ["as a request does that took the client before"])
        assert jobs.client is before
        assert other.post("/two").status_code == 200
    assert jobs.client is not before
    assert sum(1 for _ in jobs.client.store.search(Search(), 10)) == 3
    jobs.close()


def test_a_server_that_does_not_start_leaves_the_store_to_the_others(jobs: App) -> None:
    """It counts as one that has ended."""

    @asynccontextmanager
    async def broken(server: FastAPI) -> AsyncIterator[None]:
        if server.title:
            raise RuntimeError("no licence")
        yield

    with TestClient(FastAPI(lifespan=lifespan(jobs))):
        before = jobs.client
        with (
            pytest.raises(RuntimeError, match="no licence"),
            TestClient(FastAPI(lifespan=lifespan(jobs, broken))),
        ):
            pass
        assert jobs.client is before
    assert jobs.client is not before
    jobs.close()


def test_an_endpoint_is_tested_in_a_sandbox(jobs: App, ergon: Sandbox, tmp_path: Path) -> None:
    """Jobs of the application under test are drained by the test."""
    api = FastAPI(lifespan=lifespan(ergon.use(jobs)))
    api.mount("/ergon", routes(jobs))

    @api.post("/")
    def note(client: Client) -> str:
        return client.enqueue("shop#note", ["hello"])

    with TestClient(api, base_url="http://localhost", client=("127.0.0.1", 4)) as http:
        job = http.post("/").json()
        assert http.get("/ergon/ready").json() == {"status": "ready"}
        found = http.get("/ergon/api/v1/jobs").json()["items"]
        assert [each["id"] for each in found] == [job]
        assert 'ergon_part_up{part="jobs"} 1' in http.get("/ergon/metrics").text
        assert http.get("/ergon/api/v1/dead-letters").status_code == 200
        assert ergon.drain().completed == 1
        assert jobs.client.result(job, 0) == "hello"
    assert not (tmp_path / "work.db").exists()


def test_starlette_has_the_same(jobs: App) -> None:
    """Without dependencies: the App is in the state of the request."""

    def note(request: Request) -> JSONResponse:
        return JSONResponse(request.state.ergon.client.enqueue("shop#note", ["hello"]))

    api = Starlette(
        routes=[Route("/", note), Mount("/ergon", routes(jobs))], lifespan=lifespan(jobs)
    )
    with TestClient(api, client=("127.0.0.1", 4)) as http:
        job = http.get("/").json()
        found = http.get(f"/ergon/api/v1/jobs/{job}", headers={"host": "localhost"})
        assert found.json()["status"] == "pending"


def test_probes_are_open_and_the_rest_wants_the_token(jobs: App) -> None:
    """Also below the path where they are mounted."""
    api = FastAPI(lifespan=lifespan(jobs))
    api.mount("/ergon", routes(jobs, token="correct-horse-battery"))  # noqa: S106 - of no server
    with TestClient(api) as http:
        assert http.get("/ergon/health/live").json() == {"status": "live"}
        assert http.get("/ergon/metrics").status_code == 401
        assert http.get("/live").status_code == 404
        token = {"Authorization": "Bearer correct-horse-battery"}
        assert "ergon_jobs" in http.get("/ergon/metrics", headers=token).text


@pytest.mark.parametrize("wire", [lifespan, routes])
def test_what_is_no_app_is_refused(wire: Callable[[Any], Any]) -> None:
    """Where it is written, and not by the first request."""
    with pytest.raises(WiringError, match="takes an App, not NoneType"):
        wire(None)


def test_a_server_without_the_lifespan_says_what_is_missing(jobs: App) -> None:
    """At the first request that needs the client."""
    api = FastAPI()
    api.get("/")(_client_of)
    with TestClient(api) as http, pytest.raises(WiringError, match=r"lifespan=lifespan\(app\)"):
        http.get("/")


def _client_of(client: Client) -> str:
    return type(client).__name__


def test_wrong_settings_keep_the_server_from_starting() -> None:
    """They would be as wrong at the first request."""
    api = FastAPI(lifespan=lifespan(App("nats://localhost:1")))
    with (
        pytest.raises(ConfigurationError, match="NATS JetStream does not keep jobs"),
        TestClient(api),
    ):
        pass


def test_a_store_that_is_away_does_not(caplog: pytest.LogCaptureFixture) -> None:
    """Pages that need no jobs are answered, and the log says what is wrong."""
    away = App("postgresql://ergon@127.0.0.1:1/work?connect_timeout=1")
    api = FastAPI(lifespan=lifespan(away))
    api.get("/")(lambda: "hello")
    with TestClient(api) as http:
        assert http.get("/").json() == "hello"
    assert "starts without its job store" in caplog.text


# ---- what hangs ----


def hanging(half: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan of the user's that waits for ever, before its yield or after it."""

    @asynccontextmanager
    async def own_pool(_server: Any) -> AsyncIterator[None]:
        if half == "startup":
            await asyncio.Event().wait()
        yield
        await asyncio.Event().wait()

    return own_pool


class HangingApp(App):
    """An App whose store never opens, or never closes."""

    half = "startup"

    @property
    def async_client(self) -> AsyncJobClient:
        """Opened at the start."""
        if self.half == "startup":
            threading.Event().wait()
        return super().async_client

    def close(self) -> None:
        """Called at the end."""
        if self.half == "shutdown":
            threading.Event().wait()
        super().close()


def _started(api: FastAPI) -> None:
    with TestClient(api):
        pass


@pytest.mark.parametrize(("half", "what"), [("startup", "open"), ("shutdown", "closed")])
def test_a_lifespan_of_ones_own_that_hangs_is_named(jobs: App, half: str, what: str) -> None:
    """With where it is and how to give it longer; the store is closed all the same."""
    limit: Any = {f"{half}_timeout": 0.5}
    _ = jobs.async_client  # open already: it has the same limit
    api = FastAPI(lifespan=lifespan(jobs, hanging(half), **limit))
    told = rf"the lifespan 'own_pool' was not {what} within 0\.5 s \(.*{__file__}:"
    with pytest.raises(LifespanTimeoutError, match=rf"{told}.*{half}_timeout=5"):
        _started(api)


@pytest.mark.parametrize(("half", "what"), [("startup", "open"), ("shutdown", "closed")])
def test_a_store_that_hangs_is_named(half: str, what: str) -> None:
    """The thread that waits for it does not keep the process from ending."""
    app = HangingApp("memory://")
    app.half = half
    limit: Any = {f"{half}_timeout": 0.05}
    api = FastAPI(lifespan=lifespan(app, **limit))
    told = rf"the job store of the App was not {what} within 0\.05 s.*{half}_timeout=0\.5"
    with pytest.raises(LifespanTimeoutError, match=told):
        _started(api)


def test_an_error_of_a_lifespan_is_its_own(jobs: App) -> None:
    """Also one that is a timeout of something else."""

    @asynccontextmanager
    async def own(_server: Any) -> AsyncIterator[None]:
        if "cache" not in sys.modules:
            raise TimeoutError("the cache does not answer")
        yield

    with pytest.raises(TimeoutError, match="the cache does not answer") as raised:
        _started(FastAPI(lifespan=lifespan(jobs, own)))
    assert not isinstance(raised.value, LifespanTimeoutError)


@pytest.mark.parametrize("value", [0, -1, "soon", True])
def test_a_limit_that_is_none_is_refused(jobs: App, value: Any) -> None:
    """Where the lifespan is made."""
    with pytest.raises(WiringError, match="startup_timeout of the lifespan"):
        lifespan(jobs, startup_timeout=value)


HANGING_SERVER = """
import asyncio, sys
from contextlib import asynccontextmanager
from fastapi import FastAPI
from ergon_framework import App
from ergon_framework.integrations.fastapi import lifespan

@asynccontextmanager
async def own_pool(server):
    if sys.argv[1] == "startup":
        await asyncio.Event().wait()
    yield
    await asyncio.Event().wait()

api = FastAPI(lifespan=lifespan(App("memory://"), own_pool, startup_timeout=5, shutdown_timeout=1))

if __name__ == "__main__":
    import os, signal, threading, uvicorn
    server = uvicorn.Server(uvicorn.Config(api, port=0))
    if sys.argv[1] == "shutdown":
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    server.run()
    sys.exit(0 if server.started else 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("half", "what"), [("startup", "open"), ("shutdown", "closed")])
def test_a_server_ends_although_a_lifespan_hangs(tmp_path: Path, half: str, what: str) -> None:
    """Under uvicorn, which tells the error."""
    (tmp_path / "served.py").write_text(HANGING_SERVER)
    done = run_python("served.py", half, cwd=tmp_path)
    assert f"the lifespan 'own_pool' was not {what} within " in done.stderr
    assert (done.returncode == 3) == (half == "startup"), done.stderr


# ---- several processes ----

SEVERAL = """
import os
from shop import api

@api.get("/pid")
def pid() -> int:
    return os.getpid()
"""


def _scraped(http: httpx.Client) -> dict[str, float]:
    """The samples of one process."""
    lines = http.get("/ergon/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_metrics_of_several_processes(tmp_path: Path) -> None:
    """What is read from the store is the same in all; each counts since its own start."""
    folder = copied("fastapi_shop", tmp_path)
    (folder / "several.py").write_text(SEVERAL)
    port = str(free_port())  # the line of several processes tells only the port that was asked for
    words = ["-m", "uvicorn", "several:api", "--port", port, "--workers", "2"]
    # By itself uvicorn replaces a process that has not answered it for five seconds.
    words += ["--timeout-keep-alive", "600", "--timeout-worker-healthcheck", "150"]
    attempts = 'ergon_job_attempts_total{queue="default",outcome="completed"}'
    waiting = 'ergon_jobs{queue="default",status="pending"}'
    with started(folder, *words) as output, ExitStack() as opened:
        threading.Thread(target=output.read, daemon=True).start()
        clients: dict[int, httpx.Client] = {}

        def another() -> bool:
            address = f"http://127.0.0.1:{port}"
            # A connection stays with its process; by itself the client would close it after five
            # idle seconds, and the next one may be another process's.
            kept = httpx.Limits(keepalive_expiry=None)
            client = opened.enter_context(httpx.Client(base_url=address, timeout=30, limits=kept))
            try:
                clients.setdefault(int(client.get("/pid").text), client)
            except httpx.TransportError:  # it is just being started
                return False
            return len(clients) == 2

        def told(name: str) -> list[float | None]:
            return [_scraped(each).get(name) for each in clients.values()]

        until(another)
        with App(f"sqlite:///{folder}/ergon.db", name="shop") as jobs:
            ship = jobs.job("ship")(lambda order_id: order_id)
            for order in ("a", "b"):
                ship.enqueue(order)
            until(lambda: told(waiting) == [2, 2], "the jobs in both")
            jobs.drain()
            until(lambda: told(attempts) == [2, 2], "the attempts in both")
            gone, left = clients
            os.kill(gone, signal.SIGKILL)
            clients = {left: clients[left]}
            until(another)
            [new] = [each for pid, each in clients.items() if pid != left]
            assert not _scraped(new).get(attempts), "it was started after these"
            until(lambda: _scraped(clients[left]).get(attempts) == 2, "the attempts in the old one")
            ship.enqueue("c")
            until(lambda: told(waiting) == [1, 1], "the job in both")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[api\]"):
        __import__(MODULE)
