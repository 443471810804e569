"""What a worker does once for many jobs, and what it leaves out where nobody wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry import add_listener, remove_listener
from tests.jobs.real_worker import burst, get, job, unruly, worker

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


class Picky:
    """A listener that does without some notices."""

    passes_over = frozenset({"job.completed"})

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, notice: Notice) -> None:
        """Take note."""
        self.names.append(notice.name)


@contextmanager
def listening(listener: Callable[[Notice], None]) -> Iterator[None]:
    """It hears this process."""
    add_listener(listener)
    try:
        yield
    finally:
        remove_listener(listener)


@pytest.mark.req("ONE:notices")
def test_ends_are_told_to_those_who_want_them() -> None:
    """Nothing is said of a good end that nobody wants to hear of; of all others it is."""
    picky, heard = Picky(), list[str]()
    some = [job("echo", id="good"), job("no-such-thing", id="bad")]
    with listening(picky):
        burst(some)
        assert "job.completed" not in picky.names
        assert "job.dead_lettered" in picky.names
        with listening(lambda notice: heard.append(notice.name)):
            burst(some)
    assert heard.count("job.completed") == heard.count("job.dead_lettered") == 1
    assert picky.names.count("job.dead_lettered") == 2


@pytest.mark.req("EXEC:Request")
def test_what_is_sent_together_has_one_deadline() -> None:
    """Reading the clock for each would tell each executor something else to read.

    A step that fails beside them holds its flow, and the worker tells.
    """
    store = MemoryJobStore()
    store.add([job("echo", id=f"j{n}", timeout=60.0) for n in range(5)])
    flow = JobClient(store=store).chain("no-such-thing", "echo", on_failure="hold").enqueue()
    held: list[Notice] = []
    with listening(lambda notice: held.append(notice) if notice.name == "flow.held" else None):
        worker(store, executor=unruly(max_in_flight=5), burst=True).run()
    assert [(each["flow_id"], each["job_id"]) for each in held] == [(flow, f"{flow}.1")]
    contexts = [msgspec.json.decode(get(store, f"j{n}").result or b"")["context"] for n in range(5)]
    assert len({each["deadline"] for each in contexts}) == 1
