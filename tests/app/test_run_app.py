"""Parts of an App beside each other: stages, stops, and what follows a failure."""

from __future__ import annotations

import threading

import pytest

from ergon_framework.app.run_app import AppRun
from ergon_framework.core.process_restart import RestartRule
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import ConfigurationError

AT_ONCE = RestartRule(limit=2, window=60.0, backoff=Backoff(0.0, 1.0, 0.0))


pytestmark = pytest.mark.req("ONE:run")


class Part:
    """Does what it is told, and notes what happens to it."""

    def __init__(self, name: str, log: list[str], *errors: Exception, stays: bool = False) -> None:
        self.name = name
        self._log = log
        self._errors = list(errors)
        self._stays = stays
        self._stopped = threading.Event()

    def run(self) -> None:
        self._log.append(f"{self.name} runs")
        if self._errors:
            raise self._errors.pop(0)
        if self._stays:
            assert self._stopped.wait(20)
        self._log.append(f"{self.name} ends")

    def stop(self, count: int) -> None:
        self._log.append(f"{self.name} is stopped {count}")
        self._stopped.set()

    def close(self) -> None:
        self.is_closed = True


def test_stages_follow_each_other_and_services_outlast_them() -> None:
    """A burst runs consumers first, for they may enqueue jobs; a node serves until all is done."""
    log: list[str] = []
    service = Part("node", log, stays=True)
    AppRun([[Part("consumer", log)], [Part("jobs", log)]], [service]).run()
    assert [each for each in log if not each.startswith("node runs")] == [
        "consumer runs",
        "consumer ends",
        "jobs runs",
        "jobs ends",
        "node is stopped 1",
        "node ends",
    ]


def test_a_part_that_fails_is_started_again() -> None:
    """A broker that is away for a while does not end a consumer for good."""
    log: list[str] = []
    part = Part("orders", log, OSError("away"), OSError("still away"))
    AppRun([[part]], rule=AT_ONCE).run()
    assert log == ["orders runs", "orders runs", "orders runs", "orders ends"]


def test_a_part_that_fails_too_often_stops_the_others() -> None:
    """What is left would look healthy while work is not done; the error is raised."""
    log: list[str] = []
    other = Part("jobs", log, stays=True)
    part = Part("orders", log, *[OSError(f"away {number}") for number in range(9)])
    with pytest.raises(OSError, match="away 2"):
        AppRun([[other, part]], rule=AT_ONCE).run()
    assert log.count("orders runs") == 3
    assert "jobs is stopped 1" in log
    assert log[-1] == "jobs ends"


def test_a_refused_configuration_is_not_tried_again() -> None:
    """It would be refused again."""
    log: list[str] = []
    part = Part("orders", log, ConfigurationError("no such queue"))
    with pytest.raises(ConfigurationError, match="no such queue"):
        AppRun([[part]], rule=AT_ONCE).run()
    assert log.count("orders runs") == 1


def test_a_burst_starts_nothing_again() -> None:
    """Its caller wants to know how it ended."""
    log: list[str] = []
    later = Part("jobs", log)
    with pytest.raises(OSError, match="away"):
        AppRun([[Part("orders", log, OSError("away"))], [later]]).run()
    assert "jobs runs" not in log


def test_a_stop_reaches_every_part_and_later_stages_do_not_begin() -> None:
    """A signal between two stages ends the run."""
    log: list[str] = []
    parts = [Part("a", log, stays=True), Part("b", log, stays=True)]
    run = AppRun([parts, [Part("later", log)]])
    thread = threading.Thread(target=run.run)
    thread.start()
    while len(log) < 2:
        thread.join(0.01)
    run.stop(1)
    thread.join(20)
    assert not thread.is_alive()
    assert {"a is stopped 1", "b is stopped 1"} <= set(log)
    assert "later runs" not in log
