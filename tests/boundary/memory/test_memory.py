"""The memory fact store on its own, and the suite itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.errors import StoreError, StoreUnavailableError, WiringError
from ergon_framework.ports.factstore import OUTBOUND, FactStore, LedgerEntry, LogPage
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.factstore import (
    FACT_STORE_CHECKS,
    FactStoreSuiteError,
    exercise_fact_store,
)
from ergon_framework.testing.suites.factstore.under_test import Clock, new


def make(clock: Clock) -> MemoryFactStore:
    """A store as the suite wants it."""
    return MemoryFactStore("plant-a", clock=clock)


@pytest.mark.req("BOUNDARY:store")
def test_only_durability_and_damage_are_left_out() -> None:
    """The memory store is exempt from surviving its process, and from nothing else."""
    report = exercise_fact_store(make)
    needy = tuple(check.name for check in FACT_STORE_CHECKS if check.needs - {"moving"})
    assert report.skipped == needy
    assert report.subject == "MemoryFactStore"


def test_the_store_serves_the_port() -> None:
    """A type checker accepts it wherever the port is asked for, and real time is its default."""
    store: FactStore = MemoryFactStore("plant-a")
    assert store.info().zone == "plant-a"
    assert store.info().created_at > 1_700_000_000.0


def test_the_acknowledgement_is_plain() -> None:
    """The store says that an acknowledged fact survives nothing."""
    assert "survives nothing" in MemoryFactStore.acknowledgement


def test_each_store_has_an_epoch() -> None:
    """Two stores of one zone are told apart: a restarted process has lost everything."""
    assert MemoryFactStore("a").info().epoch != MemoryFactStore("a").info().epoch


def test_there_is_no_backup(tmp_path: Path) -> None:
    """A backup that nothing could open is refused, and nothing is written."""
    with pytest.raises(StoreError, match="cannot be backed up"):
        MemoryFactStore("a").backup(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_says_what_is_gone() -> None:
    """After closing, every call is refused by name."""
    store = MemoryFactStore("a")
    store.close()
    with pytest.raises(StoreUnavailableError, match="what it held is gone"):
        store.logs()
    store.unsubscribe(lambda: None)


def test_a_damaged_fact_is_named() -> None:
    """Reading without a consumer says which fact is damaged, and shows nothing of it."""
    store = make(HandClock())
    store.append(OUTBOUND, [new("a", fact=b"secret")])
    store.database.state.logs[OUTBOUND].rows[0].fact.fact = b"hidden"
    with pytest.raises(Exception, match="at 1 of outbound") as caught:
        store.page(OUTBOUND, 0, 9, 999)
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_released_fact_that_is_gone_goes_back() -> None:
    """What was released and then lost on purpose does not stay released for ever."""
    store = make(HandClock())
    store.create_consumer("c", OUTBOUND)
    store.append(OUTBOUND, [new("a"), new("b")])
    item = store.set_aside("c", 1, reason="handler_failed", message="", attempts=1)
    store.settle(item.id, "released")
    store.truncate(OUTBOUND, 1, loss_reason="disk")
    serving = store.serve("c", 9, 999)
    assert [fact.offset for fact in serving.page.facts] == [2]
    assert [each.state for each in store.quarantine()] == ["quarantined"]


# ---- the suite ----------------------------------------------------------------------------------


def test_there_are_enough_checks() -> None:
    """The suite has plenty of required checks, each with a sentence and a name of its own."""
    assert sum(check.required for check in FACT_STORE_CHECKS) >= 200
    assert len({check.name for check in FACT_STORE_CHECKS}) == len(FACT_STORE_CHECKS)
    assert all(check.sentence.endswith(".") for check in FACT_STORE_CHECKS)


def test_unknown_checks_are_refused() -> None:
    """A misspelt name does not silently run nothing."""
    with pytest.raises(WiringError, match="did you mean 'offsets_are_dense'"):
        exercise_fact_store(make, only={"offsets_are_dens"})
    with pytest.raises(WiringError, match="no check 'xyzzy'"):
        exercise_fact_store(make, skip={"xyzzy"})


def test_checks_can_be_waived() -> None:
    """A check that was left out is in the report, and not among those that passed."""
    report = exercise_fact_store(make, only={"closes_twice"}, skip={"closes_twice"})
    assert (report.skipped, report.passed, report.ok) == (("closes_twice",), (), True)


def test_a_store_that_hangs_is_rejected() -> None:
    """The suite does not wait for ever, nor hang with its subject."""
    woken = threading.Event()

    class Hangs(MemoryFactStore):
        def find(
            self, from_zone: str, message_id: str, log: str | None = None
        ) -> LedgerEntry | None:
            woken.wait(60.0)
            return super().find(from_zone, message_id, log)

    try:
        with pytest.raises(FactStoreSuiteError, match="did not return within"):
            exercise_fact_store(
                lambda clock: Hangs("a", clock=clock), only={"look_up_of_nothing"}, patience=0.05
            )
    finally:
        woken.set()


def test_a_store_that_raises_is_rejected() -> None:
    """An exception that is none of the port's ends its check, and is told."""

    class Raises(MemoryFactStore):
        def page(self, *_: object) -> LogPage:
            raise ZeroDivisionError("by zero")

    with pytest.raises(FactStoreSuiteError, match="ZeroDivisionError: by zero"):
        exercise_fact_store(lambda clock: Raises("a", clock=clock), only={"empty_page"})


def test_durability_is_checked_where_a_store_can_be_reopened() -> None:
    """A store that forgets everything when it is opened anew is rejected."""
    forgetful = lambda store: make(HandClock())  # noqa: E731
    names = {check.name for check in FACT_STORE_CHECKS if check.needs == {"reopen"}}
    report = exercise_fact_store(make, reopen=forgetful, only=names, raises=False)
    assert set(report.failed) == names


def test_backups_are_checked_where_they_can_be_opened() -> None:
    """A store whose backup is another store is rejected."""

    class Careless(MemoryFactStore):
        def backup(self, folder: str) -> None:
            """Write nothing."""

    report = exercise_fact_store(
        lambda clock: Careless("a", clock=clock),
        restore=lambda _, clock: Careless("a", clock=clock),
        only={"backup_is_complete", "backup_begins_a_new_epoch", "store_goes_on_after_a_backup"},
        raises=False,
    )
    assert len(report.failed) == 3


@pytest.mark.slow
def test_the_suite_needs_no_test_framework() -> None:
    """The suite is importable where pytest is not installed."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS\n"
        "print(len(FACT_STORE_CHECKS))"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (str(len(FACT_STORE_CHECKS)), "")
