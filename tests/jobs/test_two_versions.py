"""Two versions of Ergon on one store: an upgrade, both beside each other, and the way back.

The other version is a commit of this repository, whose sources are taken out of its history. Where
there is none, as in a shallow clone or an archive of the sources, the tests are skipped.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import fork_server
from tests.jobs.real_worker import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:store", "JOBS:orchestrator")]

ROOT = Path(__file__).parents[2]
BEFORE = "f374b7835a0669f5a083f88bef45a62e72fd72ba"
"""The commit before workers looked at the handlers of their executors."""
JOBS = 25
TOO_NEW = "upgrade ergon-framework here"
"""What a version says of tables that a later one has made, where it cannot work with them."""

HANDLERS = """
import os
from ergon_framework import JobContext, Registry

registry = Registry()


@registry.handler("note")
def note(path: str, job: JobContext) -> None:
    with open(path, "a") as file:
        file.write(f"{job.job_id}\\n")
"""
ENQUEUE = """
import sys
from ergon_framework import JobClient

url, path, name, count = sys.argv[1:]
with JobClient(url) as client:
    for n in range(int(count)):
        client.enqueue("note", [path], id=f"{name}-{n}")
"""


@pytest.fixture(scope="session")
def old_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the other version."""
    try:
        words = ["git", "archive", "--format=tar", BEFORE, "src"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        pytest.skip(f"the history of this repository has no commit {BEFORE[:8]}: {told}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Version:
    """One version of Ergon: its commands in the folder of a test."""

    def __init__(
        self,
        sources: Path,
        place: Path,
        url: str,
        start: Callable[..., subprocess.CompletedProcess[str]],
    ) -> None:
        self._place = place
        self._url = url
        self._start = start
        self._env = os.environ | {"PYTHONPATH": str(sources)}

    def ergon(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self._run(["-m", "ergon_framework.cli", *words], code)

    def enqueue(self, name: str) -> list[str]:
        """Add jobs whose ids begin with a name; answers with the ids."""
        path = str(self._place / "ran")
        self._run(["-c", ENQUEUE, self._url, path, name, str(JOBS)], 0)
        return [f"{name}-{n}" for n in range(JOBS)]

    def home(self) -> str:
        """Which sources it runs."""
        words = ["-c", "import ergon_framework; print(ergon_framework.__file__)"]
        return self._run(words, 0).stdout

    @contextmanager
    def worker(self) -> Iterator[None]:
        """A worker that stays, and ends well."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ergon_framework.cli", "worker"],
            cwd=self._place,
            env=self._env,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
        finally:
            process.kill()
            process.wait()

    def workers(self) -> int:
        """How many workers have told of themselves."""
        return len(json.loads(self.ergon("jobs", "workers", "--json").stdout))

    def statuses(self) -> Counter[str]:
        """How many jobs are in each state."""
        rows = json.loads(self.ergon("queues", "list", "--json").stdout)
        found: Counter[str] = Counter()
        for row in rows:
            found.update(row["counts"])
        return found

    def _run(self, words: list[str], code: int | None) -> subprocess.CompletedProcess[str]:
        done = self._start(
            [sys.executable, *words],
            cwd=self._place,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert code is None or done.returncode == code, done.stderr
        return done


class Place:
    """A folder with settings and handlers, one store, and both versions there."""

    def __init__(self, folder: Path, url: str, old_sources: Path) -> None:
        command = [sys.executable, "-m", "ergon_framework.executor", "--app", "handlers:registry"]
        settings = (
            f'[store]\nurl = "{url}"\n\n[executors.python]\ncommand = {json.dumps(command)}\n'
        )
        (folder / "ergon.toml").write_text(settings, encoding="utf-8")
        (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")
        self._ran = folder / "ran"
        self.old = Version(old_sources, folder, url, subprocess.run)
        self.new = Version(ROOT / "src", folder, url, fork_server.run)
        assert str(old_sources) in self.old.home()
        assert str(ROOT) in self.new.home()

    def ran(self) -> Counter[str]:
        """How often each job was run."""
        found = self._ran.read_text(encoding="utf-8") if self._ran.exists() else ""
        return Counter(found.split())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.campaign)])
def place(request: pytest.FixtureRequest, tmp_path: Path, old_sources: Path) -> Callable[[], Place]:
    """Both versions on one store of each kind."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    return lambda: Place(tmp_path, url, old_sources)


def once(ids: list[str]) -> Counter[str]:
    """Each job was run once."""
    return Counter(ids)


def test_an_upgrade_runs_what_the_version_before_enqueued(place: Callable[[], Place]) -> None:
    """Jobs and tables of the old version are those of the new one after an upgrade."""
    both = place()
    ids = both.old.enqueue("old")
    both.new.ergon("db", "upgrade")
    both.new.ergon("worker", "--burst")
    assert both.ran() == once(ids)
    assert both.new.statuses()["completed"] == JOBS


def test_both_versions_work_beside_each_other(place: Callable[[], Place]) -> None:
    """Workers and clients of both: no job is lost, and none is run twice."""
    both = place()
    ids = both.old.enqueue("old")
    with both.old.worker():
        wait_until(both.ran, "the first job of the old worker")
        both.new.ergon("db", "upgrade")
        with both.new.worker():
            ids += both.new.enqueue("new")
            wait_until(lambda: both.new.workers() == 2, "the new worker, which may be late")
            wait_until(lambda: set(both.ran()) == set(ids), "all jobs")
    assert both.ran() == once(ids)
    found = both.new.statuses()
    assert found["completed"] == len(ids)
    assert sum(found.values()) == len(ids)


def test_the_way_back_loses_nothing(place: Callable[[], Place]) -> None:
    """The old version runs what the new one enqueued, or says that the tables are too new."""
    both = place()
    both.old.enqueue("old")
    both.new.ergon("db", "upgrade")
    ids = [f"old-{n}" for n in range(JOBS)] + both.new.enqueue("new")
    done = both.old.ergon("worker", "--burst", code=None)
    if done.returncode:
        assert TOO_NEW in done.stderr
        assert both.ran() == Counter()
        both.new.ergon("worker", "--burst")
    assert both.ran() == once(ids)


def test_jobs_that_wait_for_a_handler_outlive_the_way_back(place: Callable[[], Place]) -> None:
    """The old version leaves them alone; the next upgrade runs them, when the handler is there."""
    both = place()
    ids = both.new.enqueue("plain")
    both.new.ergon("enqueue", "later", "--id", "later")
    both.new.ergon("worker", "--burst")
    assert both.ran() == once(ids)
    done = both.old.ergon("worker", "--burst", code=None)
    assert done.returncode == 0 or TOO_NEW in done.stderr
    job = json.loads(both.new.ergon("jobs", "show", "later", "--json").stdout)
    assert (job["status"], job["attempts"]) == ("pending", 0)
