"""A place with something in every store, as the server finds it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.boundary.data_folder import FILE
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.ports.factstore import NewFact
from ergon_framework.ports.flow import Join, NewFlow, StepPlace
from ergon_framework.ports.jobstore import FlowStore, NewJob, Schedule, WorkerRecord
from ergon_framework.ports.journal import JournalEntry, SpanRecord
from ergon_framework.ports.providerstore import RecordBatch
from ergon_framework.providers.store_urls import open_store as open_provider_store
from ergon_framework.storage.journal import SqliteJournal
from tests.providers.recorder_fakes import letter, row

TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
FREE = 'listen = "127.0.0.1:0"'  # nobody knows where such a node is: its folder is looked into


def settings_in(place: Path, more: str = "") -> Settings:
    """The settings of a place with one store and one zone."""
    file = place / "ergon.toml"
    file.write_text(
        f'[store]\nurl = "sqlite:///work.db"\n[zones.plant-a]\ndata = "a"\n{FREE}\n{more}'
    )
    return load_settings(file, {})


def fill_jobs(place: Path | str, waiting: int = 5, dead: int = 0) -> None:
    """Jobs ``w0``… that wait, in queues ``mail`` and ``pics``, and ``d0``… that came too late."""
    url = place if isinstance(place, str) else f"sqlite:///{place}/work.db"
    with closing(open_job_store(url)) as store:
        now = store.now()
        late = [_job(f"d{n}", "mail", expires_at=now - 1) for n in range(dead)]
        store.add(late)
        store.prune(1000)
        store.add([_job(f"w{n}", ("mail", "pics")[n % 2]) for n in range(waiting)])
        store.heartbeat(
            WorkerRecord(
                id="w1",
                host="here",
                pid=1,
                version="1",
                started_at=now,
                executors={"python": {"in_flight": 1}},
            )
        )
        store.put_schedule(
            Schedule(
                name="nightly",
                cron="0 3 * * *",
                zone="UTC",
                misfire="once",
                job=b'{"handler":"tidy","queue":"mail","args":["hidden"]}',
                next_at=now + 60,
            )
        )


def _job(name: str, queue: str, **more: Any) -> NewJob:
    return NewJob(id=name, handler=f"handle.{queue}", queue=queue, args=b'["hidden"]', **more)


def fill_flow(place: Path) -> None:
    """A flow ``album``, of which three steps wait for the first one."""
    tree = b'{"chain":[{"step":1,"handler":"fetch"},{"step":2,"handler":"thumb","count":3}]}'
    join = Join(id="album:1", flow_id="album", remaining=1, members=b"[1]")
    flow = NewFlow(id="album", name="album", joins=(join,), plan=b'{"tree":' + tree + b"}")
    first = StepPlace(flow_id="album", feeds=("album:1",))
    later = StepPlace(flow_id="album", join_id="album:1")
    steps = [NewJob(id="album.1", handler="fetch", queue="pics", step=first)]
    steps += [NewJob(id=f"album.{n}", handler="thumb", queue="pics", step=later) for n in (2, 3, 4)]
    with closing(open_job_store(f"sqlite:///{place}/work.db")) as store:
        flows: FlowStore = store.flows  # type: ignore[attr-defined]  # each of our stores has them
        flows.add(flow, steps)


def fill_calls(url: str, letters: Sequence[str] = ()) -> None:
    """A call that was made, one that failed, and letters of calls that were given up."""
    with closing(open_provider_store(url)) as store:
        now = time.time()
        made = row("a", tenant=TENANT)._replace(created_at=now)
        failed = row("b", tenant=TENANT, outcome="failed", reason="timeout")
        given_up = [
            replace(letter(name, {"secret": "hidden"}), occurred_at=now - 60 + n)
            for n, name in enumerate(letters)
        ]
        store.record(RecordBatch([made, failed._replace(created_at=now)], given_up))


def fill_zone(place: Path, name: str = "plant-a", facts: int = 3) -> None:
    """A zone with facts, a consumer, and one fact that was set aside."""
    folder = place / "a"
    folder.mkdir()
    with closing(SqliteFactStore(folder / FILE, zone=name, clock=time.time)) as store:
        store.append("outbound", [_fact(name, n) for n in range(facts)])
        store.create_consumer("reader", "outbound")
        store.set_aside("reader", 1, reason="bad", message="cannot be read", attempts=3)


def _fact(zone: str, number: int) -> NewFact:
    digest = number.to_bytes(32, "big")
    return NewFact(zone, f"m{number}", "plant-b", digest, b"{}", b'{"object_json":"hidden"}')


TRACE = "5f0c1e7d6a5b4c3f9e8d7c6b5a493827"
TOLD_AT = 1_800_000_000.0


def _span(number: int, name: str, parent: int = 0, **more: Any) -> SpanRecord:
    """One span, which begins and ends at its number of seconds."""
    known = {
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "parent_id": f"{parent:016x}" if parent else "",
        "name": name,
        "source": "worker w1",
        "began_at": TOLD_AT + number,
        "ended_at": TOLD_AT + number + 1,
    }
    return SpanRecord(**{**known, **more})


def fill_journal(place: Path) -> None:
    """A trace of three spans, a transaction that failed, and an entry about each."""
    with SqliteJournal(place / "ergon-journal.db", keep=1e12) as journal:
        spans = [
            _span(1, "job.enqueue", unit="w1", source="operator"),
            _span(2, "job.run", parent=1, unit="w1"),
            _span(3, "start_processing", parent=2, failure="KeyError", unit="t1"),
        ]
        spans[2].attributes["ergon.task"] = "orders"
        entries = [
            JournalEntry(at=TOLD_AT, name="worker.started", source="worker w1"),
            JournalEntry(
                at=TOLD_AT + 1,
                name="job.dead_lettered",
                source="worker w1",
                unit="w1",
                trace_id=TRACE,
                fields={"handler": "<b>resize</b>", "attempts": 3},
            ),
        ]
        journal.write(entries, spans)
