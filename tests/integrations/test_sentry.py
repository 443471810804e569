from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.jobs import JobClient
from tests import fork_server

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent
SECRET = "4111-1111-1111-1111"  # noqa: S105 - what must not leave
SETTINGS = """
[store]
url = "sqlite:///jobs.db"
[jobs]
max_attempts = 2
backoff = {{ base = 0.01, cap = 0.01 }}
[telemetry]
setup = "sentry_shop:set_up"
[executors.python]
command = ["{python}", "-m", "ergon_framework.executor", "--app", "sentry_shop:registry"]
pool_size = 1
"""
Event = dict[str, Any]


class Shop:
    """Runs programs that keep their events in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "events"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        paths = os.pathsep.join(filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": paths, "EVENTS": str(self.file)}
        return fork_server.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def events(self) -> list[Event]:
        """What was sent, as far as Sentry is concerned."""
        text = self.file.read_text("utf-8") if self.file.exists() else ""
        assert SECRET not in text
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def shop_events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the shop told Sentry of its transactions and calls."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    done = shop.run(str(PROGRAMS / "sentry_shop.py"), SECRET)
    assert done.returncode == 0, done.stderr
    return shop.events()


@pytest.fixture(scope="module")
def job_events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What a worker and its executor told Sentry of three jobs."""
    shop = Shop(tmp_path_factory.mktemp("jobs"))
    settings = SETTINGS.format(python=sys.executable)
    (shop.folder / "ergon.toml").write_text(settings)
    with JobClient(f"sqlite:///{shop.folder / 'jobs.db'}") as client:
        for job_id, (handler, *args) in {
            "pays": ("pay", SECRET), "pays-again": ("python#pay", SECRET), "speaks": ("speak",),
        }.items():  # fmt: skip
            client.enqueue(handler, args, id=job_id)
    done = shop.run("-m", "ergon_framework.cli", "worker", "--burst")
    assert done.returncode == 0, done.stderr
    return shop.events()


def of(events: list[Event], unit_id: str) -> list[Event]:
    """The events that have this unit's id."""
    return [each for each in events if (each.get("tags") or {}).get("ergon.id") == unit_id]


def is_later(event: Event) -> bool:
    """Whether it was sent after the shop had changed the options."""
    return str(event["tags"]["ergon.id"])[-4:-2] in ("-1", "-2", "-3")


def breadcrumbs(event: Event) -> list[str]:
    """What was noted before it."""
    return [each["message"] for each in event["breadcrumbs"]["values"]]


def raised(event: Event) -> list[tuple[str, str]]:
    """The exceptions of an event, the cause first."""
    return [(each["type"], each["value"]) for each in event["exception"]["values"]]


def frames(event: Event) -> Iterator[Mapping[str, Any]]:
    """All frames of its stacks."""
    for value in event["exception"]["values"]:
        yield from (value.get("stacktrace") or {}).get("frames", ())


def test_one_event_for_each_unit_that_failed(shop_events: list[Event]) -> None:
    """Neither a success nor an attempt that was followed by another is one."""
    ids = [each["tags"]["ergon.id"] for each in shop_events if not is_later(each)]
    # A log record of the user's is one as well, with the ids of its unit.
    assert sorted(ids) == [
        "7", "bank-1", "bank-2", "business-3", "call-1", "call-2", "calls", "invalid-4", "logged-5",
        "queued",
    ]  # fmt: skip


def test_a_family_is_one_issue(shop_events: list[Event], job_events: list[Event]) -> None:
    """The fingerprint is kind, handler and code; ids and attempts are no part of it."""
    families = {
        each["tags"]["ergon.id"]: each["fingerprint"]
        for each in (*shop_events, *job_events)
        if "fingerprint" in each and not is_later(each)
    }
    assert families == {
        "bank-1": ["ergon", "transaction", "Orders", "ConnectionError"],
        "bank-2": ["ergon", "transaction", "Orders", "ConnectionError"],
        "business-3": ["ergon", "transaction", "Orders", "transaction"],
        "invalid-4": ["ergon", "transaction", "Orders", "ValidationError"],
        "calls": ["ergon", "transaction", "Calling", "ConnectionError"],
        "call-1": ["ergon", "call", "rates/exchange/quote", "connection_error"],
        "call-2": ["ergon", "call", "rates/exchange/refuse", "bad_request"],
        "7": ["ergon", "fact", "erp", "quarantined"],
        "queued": ["ergon", "job", "charge", "ConnectionError"],
        "pays": ["ergon", "job", "pay", "ConnectionError"],
        "pays-again": ["ergon", "job", "pay", "ConnectionError"],
    }


def test_attempts_are_breadcrumbs_of_their_unit(shop_events: list[Event]) -> None:
    """With what the user's code has noted, and with nothing of another unit."""
    (event,) = of(shop_events, "bank-2")
    assert breadcrumbs(event) == [
        "seen bank-2",
        "process, attempt 1 failed: ConnectionError: the bank is away",
        "seen bank-2",
        "process, attempt 2 failed: ConnectionError: the bank is away",
    ]
    assert event["contexts"]["ergon"]["attempts"] == 2


def test_the_stack_is_that_of_the_users_exception(shop_events: list[Event]) -> None:
    """Without the exception that the engine puts around it."""
    (event,) = of(shop_events, "bank-1")
    assert raised(event) == [("ConnectionError", "the bank is away")]
    assert [each["function"] for each in frames(event)][-1] == "process_transaction"


def test_payloads_never_leave(shop_events: list[Event], job_events: list[Event]) -> None:
    """Not in variables, and not in what pydantic quotes; reading the events has looked for it."""
    events = [each for each in (*shop_events, *job_events) if "exception" in each]
    assert not [frame for event in events for frame in frames(event) if "vars" in frame]
    ((_, text),) = raised(of(shop_events, "invalid-4")[0])
    assert "Input should be a valid integer" in text
    assert "input_value=…" in text


@pytest.mark.parametrize("unit_id", ["logged-300", "stack-301", "message-302", "event-303"])
def test_an_attached_stack_has_no_variables(shop_events: list[Event], unit_id: str) -> None:
    """That of a message, of a log record, or of an event that the user's code has made."""
    (event,) = of(shop_events, unit_id)
    stacks = [each["stacktrace"]["frames"] for each in event["threads"]["values"]]
    assert all(stacks)
    assert '"vars"' not in json.dumps(event)
    if unit_id != "event-303":
        functions = [frame["function"] for frame in stacks[0]]
        assert "process_transaction" in functions
        assert not [name for name in functions if "reviewed" in name]


def test_levels(shop_events: list[Event]) -> None:
    """A business failure is a warning."""
    levels = {each["tags"]["ergon.id"]: each["level"] for each in shop_events}
    assert levels["business-3"] == "warning"
    assert levels["bank-1"] == levels["call-1"] == "error"


def test_a_call_inside_a_transaction_is_a_breadcrumb(shop_events: list[Event]) -> None:
    """The transaction tells the end; a call on its own tells its own."""
    (event,) = of(shop_events, "calls")
    assert breadcrumbs(event)[:1] == [
        "rates/exchange/quote, attempt 1 failed: ConnectionError: no answer for 19"
    ]
    assert not of(shop_events, "inner")
    assert len(breadcrumbs(of(shop_events, "call-1")[0])) == 2


def test_a_job_is_told_by_the_worker(job_events: list[Event]) -> None:
    """Once, with the stack that the executor has told, and the attempts before."""
    (event,) = of(job_events, "pays")
    assert [kind for kind, _ in raised(event)] == ["KeyError", "ConnectionError"]
    assert [each["function"] for each in frames(event)] == ["pay", "pay"]
    assert next(frames(event))["context_line"] == 'ACCOUNTS["mine"]'
    assert breadcrumbs(event) == ["attempt 1 failed: the bank is away"]
    assert event["tags"]["ergon.queue"] == "default"


def test_a_job_that_a_task_consumes_is_told_once(shop_events: list[Event]) -> None:
    """When its queue gives it up: a transaction that failed may come again."""
    (event,) = of(shop_events, "queued")
    assert raised(event) == [("ConnectionError", "the bank is away")]
    assert [each["function"] for each in frames(event)][-1] == "process_transaction"
    assert breadcrumbs(event) == ["attempt 1 failed: ConnectionError: the bank is away"]


def test_what_a_handler_captures_has_the_ids_of_its_job(job_events: list[Event]) -> None:
    """In the executor's process."""
    (event,) = of(job_events, "speaks")
    assert event["message"] == "from a handler"
    assert event["tags"]["ergon.name"] == "speak"


def test_retries_and_business_failures_on_request(shop_events: list[Event]) -> None:
    """Each attempt is an event of the same issue then, and what is expected is none."""
    first, last = of(shop_events, "bank-100")
    assert (first["level"], last["level"]) == ("warning", "error")
    assert first["fingerprint"] == last["fingerprint"]
    assert not of(shop_events, "business-101")


def test_when_sentry_is_switched_off_nothing_is_told(shop_events: list[Event]) -> None:
    """The work goes on."""
    assert not of(shop_events, "bank-200")


def test_without_the_package_the_extra_is_named() -> None:
    """As everywhere."""
    code = """
import sys
sys.modules["sentry_sdk"] = None
import ergon_framework.integrations.sentry
"""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert 'pip install "ergon-framework[sentry]"' in done.stderr
