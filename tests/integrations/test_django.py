"""Django with jobs: the example project under its own commands, and what follows a transaction."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from ergon_framework.errors import MissingExtraError
from tests.docs.programs import run_python
from tests.integrations.programs import copied, served
from tests.servers.postgres import PostgresServer
from tests.servers.server import free_port

PROGRAM = Path(__file__).parent / "django_program"
PROGRAM_ON_POSTGRESQL = Path(__file__).parent / "django_on_postgresql.py"
SERVER = """
import sys, django
from django.core.management import call_command
django.setup()
call_command("migrate", verbosity=0)
call_command("runserver", sys.argv[1], use_reloader=False)
"""  # two commands of manage.py in one process
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example."""
    return copied("django_shop", tmp_path_factory.mktemp("django"))


@pytest.fixture(scope="module")
def shop(project: Path) -> Iterator[httpx.Client]:
    """The example under Django's server, with its tables."""
    with served(
        project, "-c", SERVER, str(free_port()), DJANGO_SETTINGS_MODULE="settings"
    ) as client:
        yield client


@pytest.fixture(scope="module")
def told(project: Path) -> dict[str, Any]:
    """What the program says about one process of this project; its database is a relative file."""
    done = run_python(str(PROGRAM), "other.db", cwd=project)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_orders_over_http_are_shipped_by_a_worker(shop: httpx.Client, project: Path) -> None:
    """Jobs of both kinds, found in an installed application; a failed request leaves none."""
    assert shop.post("/orders/pie").status_code == 202
    assert shop.post("/orders/cake/safe").status_code == 202
    assert shop.post("/orders/tart?fail").status_code == 500
    assert shop.post("/orders/bread/safe?fail").status_code == 500
    assert shop.get("/status/pie").json() == {"state": "new"}
    words = (str(project / "manage.py"), "ergon", "worker", "--burst", "--processes", "1")
    done = run_python(*words, cwd=project.parent)  # wherever it is started
    assert done.stdout == "3 completed, 0 retried, 0 failed\n", done.stderr
    assert shop.get("/status/pie").json() == {"state": "shipped"}
    assert shop.get("/status/cake").json() == {"state": "shipped"}


def test_a_job_on_commit_is_stored_after_the_commit(told: dict[str, Any]) -> None:
    """And never when the transaction, or the savepoint, was rolled back."""
    assert told["before the commit"] == []
    assert told["after the commit"] == ["django#ship [1]"]
    assert told["after rollbacks"] == ["django#ship [6]", "django#ship [1]"]
    assert told["outside of a transaction"][0] == "django#ship [7]"


def test_mistakes_are_told_in_the_request(told: dict[str, Any]) -> None:
    """Not after the commit, when it would be too late."""
    assert "order_id" in told["wrong arguments"]
    assert "no transaction open" in told["outside"]
    function, nothing = told["no handler"]
    assert "on_commit takes a handler of jobs, which print is not (write @app.job" in function
    assert "in_transaction takes a handler of jobs, which NoneType is not" in nothing
    broken = told["in a broken transaction"]
    assert broken.startswith("TransactionManagementError: ")  # as every query there is answered


def test_a_job_that_waits_for_its_own_transaction_is_refused_at_once(told: dict[str, Any]) -> None:
    """On the file that the transaction has written to; another writer is waited for."""
    for refused in told["waits for itself"]:
        assert refused.startswith("WiringError: this transaction of Django has written to ")
        assert "on_commit(handler).enqueue(…)" in refused
        assert "in_transaction(handler).enqueue(…)" in refused
    stored = ["after a write", "in a written transaction", "after a read"]
    assert told["after a write"] == stored
    assert told["waits for another"] == ""


def test_a_process_that_dies_after_the_commit(told: dict[str, Any]) -> None:
    """Loses a job on commit, and never one in the transaction."""
    assert told["codes"] == [9, 9]
    assert told["orders"] == ["in_transaction", "on_commit"]
    assert told["kept"]
    assert told["jobs"] == 4  # the three from before, and the one that was part of its transaction


def test_connections_are_refreshed_around_each_job(told: dict[str, Any]) -> None:
    """As they are around requests; an async handler uses the ORM as well."""
    assert told["is closed"]
    assert (told["thanks"], told["state"]) == ("thank you for in_transaction", "shipped")


def test_the_settings_of_django_name_the_store(told: dict[str, Any]) -> None:
    """Its own database by default; what is wrong is refused with its key."""
    assert told["same app"]
    assert told["checks"] == []
    assert "has no key 'URI' (known are URL, DATABASE" in told["unknown key"]
    assert "is no dictionary" in told["no dictionary"]
    assert told["urls"] == [
        "postgresql://me:p%40ss%2Fword@db.example.org:5433/shop",
        "postgresql:///shop?host=%2Frun%2Fpostgresql",
        "postgresql:///?service=shop",
        "postgresql://db/shop?sslmode=verify-full&options="
        + quote(r"-c search_path=shop -c role=the\ owner"),
    ]
    assert "has no option 'sslmod' (did you mean sslmode?" in told["unknown option"]
    mysql, memory, unknown = told["refused"]
    assert "which is mysql" in mysql
    assert 'ERGON = {"URL"' in mysql
    assert "sqlite3 in memory" in memory
    assert "no database 'none'" in unknown


def test_jobs_are_kept_with_the_project(told: dict[str, Any], project: Path) -> None:
    """Never in the installed package: in Django's database, in BASE_DIR, or as CONFIG says."""
    names = ["other.db", "own.db", "jobs.db", "other.db", "jobs.db", "jobs.db"]
    assert told["stores"] == [f"sqlite:///{project / name}" for name in names]
    assert "URL of ERGON in the settings of Django is no text" in told["no text"]


def test_a_test_without_a_sandbox_leaves_the_real_jobs_alone(
    told: dict[str, Any], project: Path
) -> None:
    """Its jobs are where its rows are; one in memory takes part in no transaction."""
    memory, file = told["in a test"]
    assert memory["url"] == "memory://"
    assert file["url"] == f"sqlite:///{project / 'test.db'}"
    assert memory["jobs"] == ["django#ship [9]"]
    assert sorted(file["jobs"]) == ["django#ship [10]", "django#ship [9]"]
    assert "(put the App into a sandbox: self.enterContext(Sandbox()).use(app)" in memory["refused"]
    assert file["refused"] == ""
    assert memory["checks"] == file["checks"] == []
    assert told["real jobs of a test"] == 0


def test_the_tests_of_the_project_pass(project: Path) -> None:
    """With the jobs in memory and the database of Django's own test runner."""
    done = run_python("manage.py", "test", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr


@pytest.mark.req("SCALE:transaction")
def test_jobs_follow_a_transaction_on_postgresql(
    project: Path, postgres_server: PostgresServer
) -> None:
    """A rollback enqueues nothing; a job in the transaction outlives its process."""
    url = postgres_server.new_database()
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    place = (parts.path.strip("/"), host, str(parts.port or ""), parts.username or "")
    done = run_python(str(PROGRAM_ON_POSTGRESQL), *place, cwd=project)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    postgres_server.drop_database(url)
    assert told["store"].startswith("postgresql://")
    assert told["before the commit"] == []
    assert told["after the commit"] == [2, 1]
    assert told["after rollbacks"] == [], "neither kind, nor in a savepoint, nor after an error"
    assert told["alone"] == [5], "a job of its own commit stays whatever becomes of the transaction"
    assert "no transaction open" in told["outside"]
    assert told["broken"].startswith("TransactionManagementError: ")
    assert told["codes"] == [9, 9]
    assert told["orders"] == ["in_transaction", "on_commit"]
    assert told["jobs of orders"] == ["in_transaction"]
    assert told["done"] == "in_transaction"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    module = "ergon_framework.integrations.django"
    for name in [each for each in sys.modules if each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "django.db", None)
    monkeypatch.setitem(sys.modules, "django.conf", None)
    with pytest.raises(MissingExtraError, match=r"ergon-framework\[django\]"):
        _ = import_module(module).app


def test_wrong_settings_fail_the_check_of_django(project: Path) -> None:
    """With what to do about it."""
    settings = project / "wrong_settings.py"
    settings.write_text('from settings import *\nERGON = {"URL": "mysql://localhost/shop"}\n')
    done = run_python("manage.py", "check", "--settings", "wrong_settings", cwd=project)
    assert done.returncode != 0
    assert "ergon.E001" in done.stderr
    assert "mysql" in done.stderr
