"""Flask with jobs: the example project with server and worker, and its parts in this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flask import Flask, current_app, g

from ergon_framework import App
from ergon_framework.errors import MissingExtraError, WiringError
from ergon_framework.integrations.commands import run_command
from ergon_framework.integrations.flask import Ergon, get_ergon
from ergon_framework.testing import Sandbox
from tests.docs.programs import run_python
from tests.integrations.programs import copied, served, started

MODULE = "ergon_framework.integrations.flask"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example."""
    return copied("flask_shop", tmp_path_factory.mktemp("flask"))


@pytest.fixture(scope="module")
def shop(project: Path) -> Iterator[httpx.Client]:
    """The example under Flask's server, without a worker."""
    with served(project, "-m", "flask", "--app", "shop", "run", "--port", "0") as client:
        yield client


@pytest.mark.slow
def test_an_order_over_http_is_shipped_in_the_context_of_the_application(
    shop: httpx.Client, project: Path
) -> None:
    """The worker's processes load the application through its factory."""
    answer = shop.post("/orders/o1")
    assert answer.status_code == 202
    look = answer.json()["look"]
    assert shop.get(look).json() == {"status": "pending", "result": None}
    worker = ("-m", "flask", "--app", "shop", "ergon", "worker", "--burst", "--processes", "1")
    with started(project, *worker) as output:
        assert output.read() == "1 completed, 0 retried, 0 failed\n"
    told = shop.get(look).json()
    assert told == {"status": "completed", "result": "o1 is on its way with Northwind"}
    assert shop.get("/jobs/nobody").status_code == 404


@pytest.mark.slow
def test_commands_of_ergon_are_commands_of_flask(shop: httpx.Client, project: Path) -> None:
    """On the store of the application, from any folder, with their own options."""
    job = shop.post("/orders/o2").json()["job"]
    app = str(project / "shop.py")
    shown = run_python(
        "-m", "flask", "--app", app, "ergon", "jobs", "show", job, "--json", cwd=project.parent
    )
    assert shown.returncode == 0, shown.stderr
    assert '"handler":"shop#ship"' in shown.stdout.replace(" ", "")


def test_check_tells_what_the_application_has(
    jobs: Ergon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where its jobs are, and who runs them."""
    jobs.job("ship")(lambda: None)
    assert run_command(jobs, ["check"], program="flask ergon") == 0
    store, handlers, workers = capsys.readouterr().out.splitlines()
    assert (store.split()[0], handlers, workers) == ("store", "handlers  ship", "workers   0")
    assert str(tmp_path / "work.db") in store


def test_a_command_tells_what_is_wrong_with_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, and with an exit code of its own."""
    code = run_command(App("nats://localhost:1"), ["jobs", "list"], program="flask ergon")
    assert code == 2
    assert "NATS JetStream does not keep jobs" in capsys.readouterr().err
    assert "nats:" not in str(dict(os.environ))  # the next command may belong to another App


# ---- inside this process ----


@pytest.fixture
def jobs(tmp_path: Path) -> Ergon:
    """An extension that was given no application."""
    return Ergon(f"sqlite:///{tmp_path}/work.db", name="shop")


def made(jobs: Ergon, carrier: str) -> Flask:
    """What a factory makes."""
    app = Flask("shop")
    app.config["CARRIER"] = carrier
    jobs.init_app(app)
    return app


def test_each_job_has_a_context_of_its_own(jobs: Ergon, ergon: Sandbox) -> None:
    """Of the application that was made last; for async handlers, too."""
    ergon.use(jobs)

    @jobs.job
    def ship() -> str:
        g.count = g.get("count", 0) + 1
        return f"{current_app.config['CARRIER']} {g.count}"

    @jobs.job
    async def ask() -> str:
        return str(current_app.config["CARRIER"])

    made(jobs, "Southwind")
    made(jobs, "Northwind")
    calls = [ship.enqueue(), ship.enqueue(), ask.enqueue()]
    ergon.drain()
    assert [job.result(0) for job in calls] == ["Northwind 1", "Northwind 1", "Northwind"]


def test_applications_that_share_an_extension_each_drain_in_their_own_context(
    jobs: Ergon, ergon: Sandbox
) -> None:
    """Not in that of the one which happened to be made last."""
    ergon.use(jobs)

    @jobs.job
    def ship() -> str:
        return str(current_app.config["CARRIER"])

    @jobs.job
    async def ask() -> str:
        return str(current_app.config["CARRIER"])

    first, _second = made(jobs, "Southwind"), made(jobs, "Northwind")
    with first.app_context():
        calls = [ship.enqueue(), ask.enqueue()]
        ergon.drain()
        assert [job.result(0) for job in calls] == ["Southwind", "Southwind"]
    with Flask("stranger").app_context():
        last = ship.enqueue()
        ergon.drain()
        assert last.result(0) == "Northwind"


def test_a_second_extension_of_one_application_is_refused(jobs: Ergon, tmp_path: Path) -> None:
    """No command of flask would find the first; the same one again changes nothing."""
    app = made(jobs, "Southwind")
    jobs.init_app(app)
    other = Ergon(f"sqlite:///{tmp_path}/other.db", name="other")
    with pytest.raises(WiringError, match="'shop' has another Ergon") as raised:
        other.init_app(app)
    assert "give this one another application" in raised.value.remedy
    assert get_ergon(app) is jobs


TWO = """
from flask import Flask, current_app

from ergon_framework.integrations.flask import Ergon

jobs = Ergon()


@jobs.job
def ship() -> str:
    return current_app.name


public, admin = Flask("public"), Flask("admin")
jobs.init_app(public)
jobs.init_app(admin)


@public.cli.command("order")
def order() -> None:
    print(ship.enqueue())
"""


@pytest.mark.slow
def test_a_worker_runs_jobs_in_the_application_that_it_was_started_for(tmp_path: Path) -> None:
    """Two applications of one file share an extension, and the other one was made last."""
    (tmp_path / "two.py").write_text(TWO)
    flask = ("-m", "flask", "--app", "two:public")
    job = run_python(*flask, "order", cwd=tmp_path).stdout.strip()
    worker = (*flask, "ergon", "worker", "--burst", "--processes", "1")
    ended = run_python(*worker, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    shown = run_python(*flask, "ergon", "jobs", "show", job, "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["result"] == "public"


def test_the_extension_is_found_through_the_application(jobs: Ergon) -> None:
    """And what is missing is named."""
    app = made(jobs, "Northwind")
    with app.app_context():
        assert get_ergon() is jobs
    assert get_ergon(app) is jobs
    with pytest.raises(WiringError, match="no current Flask application"):
        get_ergon()
    with pytest.raises(WiringError, match=r"init_app\(app\)"):
        get_ergon(Flask("other"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setitem(sys.modules, "flask", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[flask\]"):
        __import__(MODULE)
