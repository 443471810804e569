"""All our provider stores under the behaviour suite, and the suite itself."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ergon_framework.errors import WiringError
from ergon_framework.ports.providerstore import LaneKey, LaneState, ProviderStore
from ergon_framework.providers.models import metadata
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.database import SqlCursor
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from ergon_framework.testing import (
    PROVIDER_STORE_CHECKS,
    ProviderStoreSuiteError,
    exercise_provider_store,
)
from ergon_framework.testing.suites.providerstore.under_test import BESIDE, CLOCK, Clock
from tests.providers.stores.store_factory import waiting_for_rows
from tests.servers.postgres import PostgresServer

NAMES = [check.name for check in PROVIDER_STORE_CHECKS]


class Databases:
    """Where databases of one kind are: it opens an empty one, and the same one again."""

    def __init__(self, empty_url: Callable[[], str]) -> None:
        self._empty_url = empty_url
        self._urls: dict[ProviderStore, str] = {}

    def open(self, clock: Clock | None) -> ProviderStore:
        """A store with nothing in it."""
        url = self._empty_url()
        store = open_store(url, clock=clock)
        self._urls[store] = url
        return store

    def beside(self, store: ProviderStore, clock: Clock) -> ProviderStore:
        """What another process would have."""
        return open_store(self._urls[store], clock=clock)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Databases:
    """Files: each a copy of one whose tables are there."""
    folder = tmp_path_factory.mktemp("suite")
    template = folder / "template.db"
    open_store(f"sqlite:///{template}").close()
    numbers = itertools.count()

    def empty() -> str:
        path = folder / f"{next(numbers)}.db"
        shutil.copy(template, path)
        return f"sqlite:///{path}"

    return Databases(empty)


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[Databases]:
    """One database, emptied for each store."""
    import psycopg

    url = postgres_server.new_database()
    open_store(url).close()
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    with psycopg.connect(url, autocommit=True) as connection:

        def empty() -> str:
            connection.execute(f"TRUNCATE {tables}".encode())
            return waiting_for_rows(url)

        yield Databases(empty)


@pytest.mark.req("PROVIDERS:storage", "PEF:G-3", "PEF:M-1", "PEF:A-9", "PEF:A-14", "PEF:A-16")
@pytest.mark.req("PEF:Q-1", "PEF:Q-3", "PEF:Q-4", "PEF:Q-5", "PEF:Q-6", "PEF:A-12", "PEF:A-19")
@pytest.mark.req("PEF:H-1", "PEF:H-2", "PEF:H-3", "PEF:H-4", "PEF:A-21", "PEF:A-22", "PEF:A-23")
@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_our_databases_keep_their_promises(
    kind: str, check: str, request: pytest.FixtureRequest
) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    databases: Databases = request.getfixturevalue(kind)
    report = exercise_provider_store(databases.open, open_beside=databases.beside, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize("check", NAMES)
def test_the_memory_store_keeps_its_promises(check: str) -> None:
    """Each check of the suite, also the recommended ones, as far as one process goes."""
    report = exercise_provider_store(MemoryProviderStore, only={check})
    report.raise_for_failures(recommended=True)


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:storage")
def test_closing_leaves_no_connection(postgres: Databases) -> None:
    """A connection that is in use when a PostgreSQL store is closed is closed when it is free."""
    from ergon_framework.providers.stores.postgres import PostgresProviderDatabase

    store = postgres.open(lambda: 0.0)
    assert isinstance(store, SqlProviderStore)
    database = store.database
    assert isinstance(database, PostgresProviderDatabase)
    reached, goes_on = threading.Event(), threading.Event()

    def work(cursor: SqlCursor) -> None:
        reached.set()
        goes_on.wait(60.0)

    reader = threading.Thread(target=database.read, args=(work,))
    reader.start()
    assert reached.wait(60.0)
    store.close()
    goes_on.set()
    reader.join(60.0)
    assert database.open_connections == 0


# ---- the suite ----------------------------------------------------------------------------------


@pytest.mark.req("PROVIDERS:storage")
def test_only_sharing_is_left_out() -> None:
    """The memory store is exempt from what needs a second process, and the report says so."""
    report = exercise_provider_store(MemoryProviderStore)
    assert report.subject == "MemoryProviderStore"
    assert set(report.skipped) == {one.name for one in PROVIDER_STORE_CHECKS if BESIDE in one.needs}
    reasons = {one.reason for one in report.results if one.name in report.skipped}
    assert reasons == {f"needs {BESIDE}"}


@pytest.mark.req("PROVIDERS:storage")
def test_a_store_may_have_its_own_clock() -> None:
    """Without a clock that can be set, the checks that set it are skipped, and say why."""
    report = exercise_provider_store(lambda clock: MemoryProviderStore(), has_own_clock=True)
    left_out = {one.name: one.reason for one in report.results if one.name in report.skipped}
    needy = {one.name for one in PROVIDER_STORE_CHECKS if {CLOCK, BESIDE} & one.needs}
    assert set(left_out) == needy
    assert left_out["lease_is_over"] == f"needs {CLOCK}"
    assert len(report.passed) >= 60


@pytest.mark.slow
@pytest.mark.req("PROVIDERS:storage")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_our_databases_have_their_own_clock(kind: str, request: pytest.FixtureRequest) -> None:
    """Without a clock that is given to them, our databases go by their own."""
    databases: Databases = request.getfixturevalue(kind)
    timely = {"new_key_is_mine", "held_key_is_running", "own_key_is_mine_again"}
    timely |= {"first_units_are_taken", "minutes_add_up", "old_attempts_do_not_count"}
    timely |= {"cooldown_is_told_to_all", "time_does_not_run_backwards", "closes_twice"}
    report = exercise_provider_store(
        lambda clock: databases.open(None), has_own_clock=True, only=timely
    )
    assert set(report.passed) == timely


@pytest.mark.req("PROVIDERS:storage")
def test_there_are_enough_checks() -> None:
    """The suite has at least sixty required checks, each with a sentence and a name of its own."""
    assert sum(check.required for check in PROVIDER_STORE_CHECKS) >= 60
    assert len(set(NAMES)) == len(NAMES)
    assert all(check.sentence.endswith(".") for check in PROVIDER_STORE_CHECKS)


@pytest.mark.slow
def test_every_method_has_a_check() -> None:
    """A method that does nothing but raise is noticed."""
    methods = {name for name in vars(ProviderStore) if not name.startswith("_")}
    assert len(methods) == 17
    for name in methods:

        def broken(*_: Any, **__: Any) -> Any:
            raise NotImplementedError

        class Bad(MemoryProviderStore):
            def __init__(self, *given: Any, damaged: str = name, spoilt_by: Any = broken) -> None:
                super().__init__(*given)
                setattr(self, damaged, spoilt_by)

        try:
            is_noticed = any(
                not exercise_provider_store(Bad, only={check}, raises=False).ok for check in NAMES
            )
        except NotImplementedError:
            continue  # not even a subject could be made of it
        assert is_noticed, name


def test_unknown_checks_are_refused() -> None:
    """A misspelt name does not silently run nothing."""
    with pytest.raises(WiringError, match="did you mean 'units_add_up'"):
        exercise_provider_store(MemoryProviderStore, only={"unit_add_up"})
    with pytest.raises(WiringError, match="no check 'xyzzy'") as caught:
        exercise_provider_store(MemoryProviderStore, skip={"xyzzy"})
    assert caught.value.remedy == "see PROVIDER_STORE_CHECKS"


def test_checks_can_be_waived() -> None:
    """A check that was left out is in the report, and not among those that passed."""
    name = "units_add_up"
    report = exercise_provider_store(MemoryProviderStore, only={name}, skip={name})
    assert (report.skipped, report.passed, report.ok) == ((name,), (), True)


def test_a_store_that_hangs_is_rejected() -> None:
    """The suite does not wait for ever, nor hang with its subject."""
    woken = threading.Event()

    class Hangs(MemoryProviderStore):
        def lane_state(self, key: LaneKey) -> LaneState:
            woken.wait(60.0)
            return super().lane_state(key)

    try:
        with pytest.raises(ProviderStoreSuiteError, match="did not return within"):
            exercise_provider_store(Hangs, only={"unknown_lane_is_fresh"}, patience=0.05)
    finally:
        woken.set()


@pytest.mark.slow
def test_the_suite_needs_no_test_framework() -> None:
    """The suite is importable where pytest is not installed."""
    program = (
        "import sys; sys.modules['pytest'] = None; "
        "from ergon_framework.testing import exercise_provider_store; "
        "from ergon_framework.providers.stores.memory import MemoryProviderStore; "
        "print(exercise_provider_store(MemoryProviderStore, only={'units_add_up'}).ok)"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "True"
