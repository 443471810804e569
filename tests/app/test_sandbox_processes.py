"""The pytest fixtures in several processes at once, and in processes that are forked for each test.

That is what pytest-xdist and pytest-forked do: workers of the one import the same module of the
application in the same folder, the other runs each test in a child of the process that collected
it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.programs import LONGEST, environment, run_python

pytestmark = pytest.mark.slow

SHOP = """
from ergon_framework import App

app = App()
plant = app.zone("plant")
rates = app.provider("rates", capability="exchange", quota="2/day")


@app.job(attempts=3, backoff=60.0)
def ship(order):
    if order == "late" and not seen.append(order) and len(seen) < 3:
        raise ConnectionError(order)
    return order


@rates.call
def eur_usd(*, timeout):
    return 1.08


seen = []
"""
TESTS = """
import os, time
from pathlib import Path

import pytest
from shop import app, eur_usd, plant, seen, ship


@pytest.fixture(autouse=True)
def together():
    # Until as many processes as there are have come this far: they overlap.
    folder, name = Path(os.environ["MEETING"]), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    (folder / name).touch()
    until = time.monotonic() + 30
    while len(list(folder.iterdir())) < int(os.environ["PROCESSES"]) and time.monotonic() < until:
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def program(ergon):
    ergon.use(app)
    seen.clear()


@pytest.mark.parametrize("turn", range(3))
def test_nothing_is_left_of_the_test_before(turn, ergon):
    assert list(app.client.jobs()) == []
    job = ship.options(id="the same everywhere", unique="one").enqueue(f"o{turn}")
    assert job.is_new
    ergon.drain(raises=True)
    assert job.result(0) == f"o{turn}"


def test_time_is_the_test_s_own(ergon):
    job = ship.enqueue("late")
    ergon.advance(3600)
    assert (job.status(), len(seen)) == ("completed", 3)


@pytest.mark.parametrize("turn", range(2))
def test_facts_begin_anew(turn):
    told = plant.publish("order:1", "made", {"turn": turn}, to="hq", id=("made", 1))
    assert told.offset == 1


@pytest.mark.parametrize("turn", range(2))
def test_quotas_begin_anew(turn):
    assert [eur_usd(), eur_usd()] == [1.08, 1.08]
"""
FORKED = """
import os

import ergon_framework.testing.sandbox  # once, and not in each child
from _pytest.reports import TestReport
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item):
    child = os.fork()
    if not child:
        reports = runtestprotocol(item, log=False, nextitem=None)
        for each in reports:
            if each.failed:
                os.write(2, each.longreprtext.encode())
        os._exit(0 if all(each.passed for each in reports) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    outcome = "failed" if code else "passed"
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    report = TestReport(item.nodeid, item.location, {}, outcome, f"code {code}", "call")
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
COUNT = 8


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an App and its tests."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "meeting").mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def settings(project: Path, processes: int, name: str = "gw0") -> dict[str, str]:
    """The environment of one of so many processes."""
    meeting = str(project.parent / "meeting")
    shared = {"MEETING": meeting, "PROCESSES": str(processes), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**shared, "PYTEST_XDIST_WORKER": name}


def files(project: Path) -> list[str]:
    """What the tests have left behind."""
    return sorted(each.name for each in project.iterdir())


@pytest.mark.timeout(120)
def test_two_processes_at_once_share_nothing(project: Path) -> None:
    """Neither a file nor a job: ids, unique keys, offsets and quotas are free in each."""
    before = files(project)
    running = [
        subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, *PYTEST],
            cwd=project,
            env=environment(**settings(project, 2, name)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("gw0", "gw1")
    ]
    told = [each.communicate(timeout=LONGEST)[0] for each in running]
    assert [each.returncode for each in running] == [0, 0], "\n".join(told)
    assert all(f"{COUNT} passed" in each for each in told)
    assert files(project) == before


@pytest.mark.timeout(120)
def test_a_process_for_each_test_begins_afresh(project: Path) -> None:
    """In a child of the process that has imported the application."""
    (project / "conftest.py").write_text(FORKED)
    before = files(project)
    done = run_python(*PYTEST, cwd=project, **settings(project, 1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNT} passed" in done.stdout
    assert files(project) == before
