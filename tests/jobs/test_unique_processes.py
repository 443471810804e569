"""Several processes that want one unique key, and processes that die while they take it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, Search
from ergon_framework.testing.suites.jobstore.under_test import new
from tests import fork_server
from tests.jobs.real_worker import PROGRAMS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("JOBS:store", "SCALE:jobs-postgres", "SCALE:jobs-redis"),
]
WAIT = 60

on_every_engine = pytest.mark.parametrize("url", ["sqlite", "postgres", "redis"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place on that engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[FullJobStore]:
    """A store there."""
    store = open_store(url)
    yield store
    store.close()


@on_every_engine
@pytest.mark.parametrize("rule", ["waiting", "period"])
def test_processes_that_want_one_key_add_one_job(url: str, store: FullJobStore, rule: str) -> None:
    """All of them are answered with it, whether they ask for it or extend it."""
    words = [(f"p{n}", word) for n, word in enumerate(("existing", "extend", "extend"))]
    crew = [
        fork_server.start(
            [sys.executable, PROGRAMS / "unique_adder.py", url, rule, name, "60", word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, word in words
    ]
    for each in crew:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in crew:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    answers = [each.communicate(timeout=WAIT)[0].splitlines() for each in crew]
    assert [each.returncode for each in crew] == [0] * len(crew)
    found: dict[str, set[str]] = {}
    news: Counter[str] = Counter()
    for line in (line for lines in answers for line in lines):
        key, job_id, is_new = line.split()
        found.setdefault(key, set()).add(job_id)
        news[key] += int(is_new)
    assert {len(ids) for ids in found.values()} == {1}
    assert news == {str(n): 1 for n in range(60)}
    assert store.count(Search()) == 60


@on_every_engine
@pytest.mark.parametrize(("when", "is_there"), [("before", False), ("after", True)])
def test_a_process_that_dies_while_it_takes_a_key(
    url: str, store: FullJobStore, when: str, is_there: bool
) -> None:
    """Job and key are both there, or neither is: the next one is added, or answered with it."""
    done = fork_server.run(
        [sys.executable, PROGRAMS / "unique_adder.py", url, "waiting", "dead", "1", "existing"],
        input="go\n",
        env=os.environ | {"ERGON_FAILPOINTS": f"jobs.add.{when}_commit=kill@1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (store.find("dead-0") is not None) == is_there
    rule = UniqueRule()
    job = new("next", unique_key="k0", unique=rule, on_duplicate=OnDuplicate.EXISTING)
    [found] = store.add([job])
    assert (found.id, found.is_new) == (("dead-0", False) if is_there else ("next", True))
