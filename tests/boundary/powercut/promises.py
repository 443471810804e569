"""What a node has promised by its replies, and whether a folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ergon_framework.boundary.data_folder import FILE, OBJECTS
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.errors import ErgonError
from ergon_framework.ports.factstore import OUTBOUND, Corruption
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from tests.boundary.powercut.recorder import Exchange


@dataclass(slots=True)
class Promises:
    """Everything that was acknowledged."""

    facts: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """By message id: its offset and content."""
    objects: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """By bucket and key: digest and size."""
    cursors: dict[str, int] = field(default_factory=dict)
    """By consumer; the workload only ever moves them up."""
    is_sealed: bool = False
    epoch: str | None = None
    """Which store this is; another one would stop the peers that read from it."""


def promised(exchanges: Iterable[Exchange]) -> Promises:
    """What these replies promised. A fact that was given to a reader is as good as acknowledged."""
    made = Promises()
    for exchange in exchanges:
        assert exchange.status == 200, exchange
        answer = exchange.answer
        if exchange.operation == "AppendFact":
            _add(made, exchange.asked, answer["offset"])
        elif exchange.operation == "AppendFacts":
            for item, result in zip(exchange.asked["items"], answer["results"], strict=True):
                _add(made, item, result["offset"])
        elif exchange.operation == "FetchFacts":
            for delivery in answer["facts"]:
                _add(made, delivery, delivery["offset"])
            made.epoch = answer["epoch"]
        elif exchange.operation == "PutObject":
            made.objects[answer["bucket"], answer["key"]] = answer["digest"], answer["size"]
        elif exchange.operation == "Seal":
            made.is_sealed = True
        else:
            made.cursors[exchange.asked["consumer_name"]] = answer["cursor"]
    return made


def _add(made: Promises, item: Any, offset: int) -> None:
    message_id = item["envelope"]["message_id"]
    told = made.facts.setdefault(message_id, (offset, item["fact"]["object_json"]))
    assert told[0] == offset, f"{message_id} was acknowledged at {told[0]} and at {offset}"


def broken(folder: Path, zone: str, promises: Promises, log: str = OUTBOUND) -> list[str]:
    """Which promises the folder breaks."""
    try:
        with (
            closing(SqliteFactStore(folder / FILE, zone=zone)) as store,
            closing(FilesystemObjectStore(folder / OBJECTS)) as objects,
        ):
            return [
                *_facts(store, promises, log),
                *_objects(store, objects, promises),
                *_standing(store, promises),
            ]
    except ErgonError as error:
        return [f"cannot be used: {error}"]


def _facts(store: SqliteFactStore, promises: Promises, log: str) -> Iterator[str]:
    page = store.page(log, 0, 10_000, 1 << 30)
    if [fact.offset for fact in page.facts] != list(range(1, page.head + 1)):
        yield f"the offsets of {log} have gaps"
    found = {fact.message_id: fact for fact in page.facts}
    if len(found) != len(page.facts):
        yield f"facts of {log} are doubled"
    for message_id, (offset, content) in promises.facts.items():
        fact = found.get(message_id)
        if fact is None:
            yield f"fact {message_id} is missing"
            continue
        known = store.find(fact.from_zone, message_id, log)
        if fact.offset != offset or known is None or known.offset != offset:
            yield f"fact {message_id} has left its offset {offset}"
        if json.loads(fact.fact)["object_json"] != content:
            yield f"fact {message_id} has changed"
    for told in store.verify(log):
        if isinstance(told, Corruption):
            yield f"fact {told.offset} is damaged: {told.what}"


def _objects(
    store: SqliteFactStore, objects: FilesystemObjectStore, promises: Promises
) -> Iterator[str]:
    for bucket, key in promises.objects.keys() - {(o.bucket, o.key) for o in store.objects()}:
        yield f"name {bucket}/{key} is missing"
    for stored in store.objects():  # also those that were not acknowledged: a name needs its bytes
        told = promises.objects.get((stored.bucket, stored.key))
        if told is not None and told != (digest_text(stored.digest), stored.size):
            yield f"name {stored.bucket}/{stored.key} stands for other bytes"
        wrong = objects.verify(stored.digest, stored.size)
        if wrong is not None:
            yield f"object {stored.bucket}/{stored.key} is damaged: {wrong}"


def _standing(store: SqliteFactStore, promises: Promises) -> Iterator[str]:
    cursors = {each.name: each.cursor for each in store.consumers()}
    for name, cursor in promises.cursors.items():
        if cursors.get(name, -1) < cursor:
            yield f"consumer {name} is at {cursors.get(name)}, not at {cursor}"
    if promises.is_sealed and not store.link("").is_sealed:
        yield "the zone is no longer sealed"
    if promises.epoch not in (None, store.info().epoch):
        yield "the store has begun another epoch"
