from __future__ import annotations

import copy
import json
import logging
import logging.handlers
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ergon_framework.ports.context import Attempt
from ergon_framework.ports.transaction import CURRENT, Transaction
from ergon_framework.telemetry import JsonFormatter, install_log_context, uninstall_log_context
from ergon_framework.telemetry.logs import FIELDS
from tests.telemetry.conftest import Recorder
from tests.telemetry.fake_engine import FakeEngine

logger = logging.getLogger("tests.telemetry.shop")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What the logger of these tests was given."""
    handler = Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)


def inside(body: Callable[[], Any], recorder: Recorder | None = None) -> Attempt | None:
    """Run ``body`` as the second process attempt of transaction t1."""
    install_log_context()
    recorder = recorder or Recorder("lean")
    engine = FakeEngine(recorder.sink())
    engine.begin()
    run = engine.take(Transaction("t1", {"card": "secret"}, {"token": "secret"}))
    result: Attempt | None = engine.attempt(run, "process", 1, body=body)
    engine.finish(run)
    engine.end()
    return result


@pytest.mark.req("R0-LG1", "R1-O3", "R0-C1")
def test_records_know_their_transaction(kept: Kept, recorder: Recorder) -> None:
    """A record made in a hook carries all ids without any work by the user."""
    inside(lambda: logger.info("working"), recorder)

    (record,) = kept.records
    span = recorder.one("process.attempt").context
    assert {name: getattr(record, name) for name in FIELDS} == {
        "transaction_id": "t1",
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "task": "Orders",
        "component": "consumer",
        "phase": "process",
        "attempt": 1,
    }


@pytest.mark.req("R0-LG1")
def test_fields_work_in_every_style(kept: Kept) -> None:
    """Format strings, attribute access and the record's dictionary all see the fields."""
    inside(lambda: logger.info("working on %s", "it"))

    (record,) = kept.records
    text = "%(transaction_id)s %(task)s %(message)s"
    assert logging.Formatter(text).format(record) == "t1 Orders working on it"
    braces = logging.Formatter("{phase}/{attempt}", style="{")
    assert braces.format(record) == "process/1"
    assert vars(record)["transaction_id"] == "t1"


@pytest.mark.req("R0-C3")
def test_records_outside_stay_plain(kept: Kept) -> None:
    """Before, after and beside a lifecycle there is nothing of it."""
    install_log_context()
    logger.info("before")
    inside(lambda: logger.info("inside"))
    logger.info("after")

    before, _, after = kept.records
    assert not any(hasattr(record, name) for record in (before, after) for name in FIELDS)
    assert type(before.__dict__) is dict


@pytest.mark.req("R0-LG1")
def test_the_users_extra_wins(kept: Kept) -> None:
    """A key in ``extra`` that we set too is the user's, and raises nothing."""
    inside(lambda: logger.info("hi", extra={"transaction_id": "mine", "task": "own", "more": 1}))

    (record,) = kept.records
    shown = vars(record)
    assert (shown["transaction_id"], shown["task"], shown["more"]) == ("mine", "own", 1)
    assert (record.getMessage(), shown["phase"]) == ("hi", "process")


def test_reserved_extra_is_still_refused(kept: Kept) -> None:
    """Keys that logging itself reserves are refused inside a lifecycle as they are outside."""

    def hook() -> None:
        for key in ("message", "name", "args"):
            with pytest.raises(KeyError):
                logger.info("hi", extra={key: "x"})

    inside(hook)
    assert kept.records == []


def test_no_span_no_trace_id(kept: Kept) -> None:
    """Without spans the trace is None and everything else is there."""
    install_log_context()
    attempt = inside(CURRENT.get)
    token = CURRENT.set(attempt)
    logger.info("no span")
    CURRENT.reset(token)

    (record,) = kept.records
    assert vars(record)["trace_id"] is None
    assert vars(record)["transaction_id"] == "t1"


def test_a_fetch_has_no_transaction(kept: Kept) -> None:
    """A record made while fetching names the task and the phase."""
    install_log_context()
    fetching = Attempt(FakeEngine(Recorder("lean").sink()).call, None, "fetch", 0)
    token = CURRENT.set(fetching)
    logger.info("fetching")
    CURRENT.reset(token)

    shown = vars(kept.records[0])
    assert (shown["transaction_id"], shown["phase"]) == (None, "fetch")


def test_installing_chains_and_undoes(kept: Kept) -> None:
    """A factory set before keeps working, twice is once, and uninstalling restores it."""
    original = logging.getLogRecordFactory()

    class Marked(logging.LogRecord):
        marked = True

    try:
        logging.setLogRecordFactory(Marked)
        install_log_context()
        install_log_context()
        inside(lambda: logger.info("hi"))
        assert isinstance(kept.records[0], Marked)
        assert vars(kept.records[0])["transaction_id"] == "t1"
        uninstall_log_context()
        assert logging.getLogRecordFactory() is Marked
        uninstall_log_context()
        assert logging.getLogRecordFactory() is Marked
    finally:
        logging.setLogRecordFactory(original)


def test_records_survive_copies_and_queues(kept: Kept) -> None:
    """A record can be copied, queued and pickled, and keeps its fields."""
    inside(lambda: logger.info("working on %s", "it", extra={"more": 1}))

    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logging.handlers.QueueHandler(waiting).handle(kept.records[0])
    for record in (
        waiting.get(),
        copy.copy(kept.records[0]),
        pickle.loads(pickle.dumps(kept.records[0])),  # noqa: S301 - our own bytes
    ):
        assert vars(record)["transaction_id"] == "t1"
        assert record.getMessage() == "working on it"


def test_pickled_records_need_no_ergon(kept: Kept) -> None:
    """A log server that has never heard of Ergon can read a record from the wire."""
    inside(lambda: logger.info("hi"))

    program = (
        "import pickle, sys; print(pickle.load(sys.stdin.buffer).transaction_id, *sys.modules)"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-I", "-S", "-c", program],
        input=pickle.dumps(kept.records[0]),
        capture_output=True,
        check=True,
    )
    words = done.stdout.decode().split()
    assert words[0] == "t1"
    assert not [word for word in words if word.startswith("ergon")]


def json_line(record: logging.LogRecord) -> dict[str, Any]:
    """The one line of a record, read back."""
    line = JsonFormatter().format(record)
    assert "\n" not in line
    shape: dict[str, Any] = json.loads(line)
    return shape


@pytest.mark.req("R0-LG1", "R0-SEC")
def test_json_lines(kept: Kept) -> None:
    """One object per line with time, level, logger, message, ids and the user's extra."""
    inside(lambda: logger.warning("two\nlines", extra={"order": 7, "nothing": None}))

    shape = json_line(kept.records[0])
    assert shape.pop("time").endswith("+00:00")
    assert len(shape.pop("trace_id")) == 32
    assert len(shape.pop("span_id")) == 16
    assert shape == {
        "level": "WARNING",
        "logger": "tests.telemetry.shop",
        "message": "two\nlines",
        "transaction_id": "t1",
        "task": "Orders",
        "component": "consumer",
        "phase": "process",
        "attempt": 1,
        "order": 7,
    }


def test_json_lines_outside_a_lifecycle(kept: Kept) -> None:
    """A plain record has no ids, and an exception comes with its traceback."""
    try:
        int("broken")
    except ValueError:
        logger.exception("failed", stack_info=True)

    shape = json_line(kept.records[0])
    assert set(shape) == {"time", "level", "logger", "message", "exception", "stack"}
    assert shape["exception"].endswith("with base 10: 'broken'")


def test_json_lines_hold_anything(kept: Kept) -> None:
    """Values that JSON cannot hold become text; the record is never lost."""

    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    loop: list[object] = []
    loop.append(loop)
    extra = {"a": {1, 2}, "b": float("nan"), "c": loop, "d": Hostile(), "e": "\ud800", "f": 1}
    logger.info("odd", extra=extra)

    shape = json_line(kept.records[0])
    assert (shape["message"], shape["b"], shape["c"]) == ("odd", "nan", "[[...]]")
    assert shape["d"] == "RuntimeError: no text"
