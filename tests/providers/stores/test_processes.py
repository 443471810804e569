"""Several processes on one store, processes that die at every failpoint, and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.core.quota import QuotaUsage, QuotaWindow
from ergon_framework.ports.providerstore import ClaimState, LetterStatus, ProviderStore, RecordBatch
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.database import AFTER, BEFORE
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from tests import fork_server
from tests.campaign.parameter_sample import campaign, sampled
from tests.providers.stores.store_factory import (
    LANE,
    START,
    HandClock,
    attempt,
    letter,
    waiting_for_rows,
)

pytestmark = pytest.mark.slow
WAIT = 50
HOUR = QuotaWindow(START, START + 3600)
ROOT = Path(__file__).parents[3]
POINTS = sorted([*BEFORE.values(), *AFTER.values()])
POSTGRES = "postgresql"

# Waits until all are there, then 32 threads take what they can get.
TAKER = """
import sys, threading
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores import postgres
from ergon_framework.providers.stores.sql.store import SqlProviderStore

# On a busy machine whoever has the row may be held up: nobody gives up because of that.
limits = postgres.PostgresLimits(checkout_timeout=45.0, call_timeout=45.0)
url = sys.argv[1]
store = (
    SqlProviderStore(postgres.PostgresProviderDatabase(database_of(url), limits=limits))
    if url.startswith("postgresql")
    else open_store(url)
)
window = QuotaWindow(1_800_000_000.0, 1_800_003_600.0)
key = LaneKey("tenant", "rank", "snapshot")
granted = []

def take():
    for _ in range(10):
        if store.reserve(key, window, 1000, 1).is_granted:
            granted.append(1)

threads = [threading.Thread(target=take) for _ in range(32)]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(granted), flush=True)
store.close()
"""

# Does one thing of each kind; where it dies, the failpoint says.
ACTOR = """
import sys
from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import RecordBatch, LetterStatus
from ergon_framework.providers.store_urls import open_store
from tests.providers.stores.store_factory import LANE, START, HandClock, attempt, letter

store = open_store(sys.argv[1], clock=HandClock())
window = QuotaWindow(START, START + 3600)
action = sys.argv[2]
if action == "reserve":
    store.reserve(LANE, window, 10, 1)
elif action == "refund":
    store.refund(LANE, window, 2)
elif action == "swap":
    store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 5, START + 30))
elif action == "cool":
    store.extend_cooldown(LANE, START + 50)
elif action == "record":
    store.record(RecordBatch([attempt(id="row", correlation_id="call")], [letter(9)]))
elif action == "settle":
    store.record(RecordBatch([attempt(id="first")]))
    store.record(RecordBatch([attempt(id="second", outcome="failed", reason_code="timeout")]))
    store.settle()
elif action == "claim":
    store.claim("tenant", "new", "print", "child", 10, 100)
elif action == "finish":
    store.finish("tenant", "held", "me", {"a": 1}, None)
elif action == "letters":
    store.move_letter("letter-1", LetterStatus.PUBLISHED, when=[LetterStatus.PENDING])
elif action == "prune":
    store.prune(START - 100)
print("survived")
"""

# A parent and its children use what the parent opened, all at once.
FORKER = """
import os, sys
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.ports.providerstore import RecordBatch, LaneKey
from ergon_framework.providers.store_urls import open_store
from tests.providers.stores.store_factory import LANE, START, attempt

store = open_store(sys.argv[1])
window = QuotaWindow(START, START + 3600)
store.reserve(LANE, window, 1000, 1)
store.health("tenant")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        for n in range(20):
            assert store.reserve(LANE, window, 1000, 1).is_granted
            store.record(RecordBatch([attempt(id=f"{number}-{n}", created_at=store.now())]))
        assert store.health("tenant")
        assert open_store(sys.argv[1]) is store
        sys.stdout.flush()
        os._exit(0)
    children.append(pid)
for n in range(20):
    assert store.reserve(LANE, window, 1000, 1).is_granted
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert codes == [0, 0, 0], codes
found = store.reserve(LANE, window, 1000, 1)
[lane] = store.health("tenant")
print(found.account.used, lane.success_rate_1h)
store.close()
"""


def run(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a child to its end."""
    return fork_server.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.mark.req("PEF:Q-3", "PEF:trap-check-then-act", "PROVIDERS:quota")
@pytest.mark.parametrize("empty_url", [campaign("sqlite"), POSTGRES], indirect=True)
def test_a_thousand_units_are_a_thousand_calls(empty_url: str) -> None:
    """32 threads in each of 4 processes, all opening an empty database: exactly 1,000 get one."""
    children = [
        fork_server.start(
            [sys.executable, "-c", TAKER, waiting_for_rows(empty_url)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for _ in range(4)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        answers = [child.communicate(timeout=WAIT)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert sum(map(int, answers)) == 1000
    store = open_store(empty_url, clock=HandClock())
    [lane] = store.health(LANE.tenant_id)
    assert lane.account == QuotaUsage(HOUR, 1000, 1000)
    store.close()


def prepared(url: str) -> ProviderStore:
    """A store with something of each kind."""
    store = open_store(url, clock=HandClock())
    store.reserve(LANE, HOUR, 10, 3)
    old = attempt(created_at=START - 1000, correlation_id="old")
    store.record(RecordBatch([old], [letter(1)]))
    store.claim("tenant", "held", "print", "me", 10, 100)
    return store


def used(store: ProviderStore) -> int:
    """Units of the window that are used."""
    [lane] = store.health(LANE.tenant_id)
    assert lane.account is not None
    return lane.account.used


def is_settled(store: ProviderStore) -> bool:
    """Whether the table says what the store says."""
    assert isinstance(store, SqlProviderStore)
    sql = "SELECT success_rate_1h FROM provider_health_states"
    [(column,)] = store.database.read(lambda cursor: cursor.fetch(sql, {}))
    [lane] = store.health(LANE.tenant_id)
    return bool(column == lane.success_rate_1h)


EFFECTS: dict[str, Callable[[ProviderStore], bool]] = {
    "reserve": lambda store: used(store) == 4,
    "refund": lambda store: used(store) == 1,
    "swap": lambda store: store.lane_state(LANE).breaker.state is CircuitState.OPEN,
    "cool": lambda store: store.lane_state(LANE).cooldown_until == START + 50,
    "record": lambda store: [row.id for row in store.attempts_of("call")] == ["row"],
    "settle": is_settled,
    "claim": lambda store: (
        store.claim("tenant", "new", "print", "other", 10, 100).state is ClaimState.RUNNING
    ),
    "finish": lambda store: (
        store.claim("tenant", "held", "print", "other", 10, 100).state is ClaimState.REPLAY
    ),
    "letters": lambda store: bool(store.letters(statuses=[LetterStatus.PUBLISHED])),
    "prune": lambda store: not store.attempts_of("old"),
}


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize(
    ("url", "point"),
    [
        *(("sqlite", point) for point in POINTS),
        *sampled(((POSTGRES, point) for point in POINTS), [(POSTGRES, p) for p in AFTER.values()]),
    ],
    indirect=["url"],
)
def test_what_a_killed_process_leaves(url: str, point: str) -> None:
    """Killed before a commit, it did nothing; killed after, everything; others go on at once."""
    _, action, moment = point.split(".")
    store = prepared(url)
    died = run(ACTOR, url, action, ERGON_FAILPOINTS=f"{point}=kill")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert EFFECTS[action](store) is (moment == "after")
    if action == "record":
        assert len(store.letters(ids=["letter-9"])) == (moment == "after")
        store.record(RecordBatch([attempt(id="row", correlation_id="call")], [letter(9)]))
        [lane] = store.health(LANE.tenant_id)
        assert len(store.attempts_of("call")) == 1
        assert len(store.letters()) == 2
        assert lane.success_rate_1h == 1.0
    store.close()


@pytest.mark.req("PROVIDERS:storage")
def test_every_failpoint_has_an_effect_to_look_at() -> None:
    """The list above is complete."""
    assert {point.split(".")[1] for point in POINTS} == set(EFFECTS)


@pytest.mark.req("PEF:trap-prefork", "PROVIDERS:storage")
def test_a_store_survives_forks(url: str) -> None:
    """Parent and children go on with the same object, each with connections of its own."""
    # Newer Pythons warn of what is tested here.
    done = run(FORKER, url, PYTHONWARNINGS="ignore:This process:DeprecationWarning")
    assert (done.returncode, done.stdout.strip()) == (0, "82 1.0"), done.stderr
    assert done.stderr == ""
