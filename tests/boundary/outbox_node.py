"""A node for the tests of the outbox: it keeps what it is told, once, and fails as scripted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.schema import digest_text, identity_digest
from ergon_framework.boundary.facts.validation import references
from ergon_framework.boundary.model import Envelope, Fact, ObjectReceipt, Receipt
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    ConflictingDuplicateError,
    NodeUnavailableError,
    ObjectConflictError,
)
from ergon_framework.storage.objectstore.blob_io import compare

Fault = Callable[[], None] | Exception | None


def envelope(message_id: str, **fields: Any) -> Envelope:
    """An envelope from the plant to the enterprise."""
    defaults: dict[str, Any] = {"produced_at_unix_ms": 1_741_248_600_000}
    return Envelope(
        message_id=message_id, from_zone="plant-a", to_zone="enterprise", **{**defaults, **fields}
    )


def fact(value: Any = None, subject: str = "work_order:WO-1") -> Fact:
    """A fact that says so."""
    return Fact(subject=subject, predicate="was_measured", object_json={"value": value})


class Node:
    """Keeps facts and objects in memory. A fault is raised, or called, instead of answering.

    ``faults`` come before the node does anything, ``losses`` after it did: the answer is lost.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.facts: dict[tuple[str, str], tuple[int, str]] = {}
        self.objects: dict[tuple[str, str], tuple[str, int]] = {}
        self.calls: list[str] = []
        self.sizes: list[int] = []
        self.wire: list[bytes] = []
        self.faults: list[Fault] = []
        self.losses: list[Fault] = []
        self.refusals: dict[str, BoundaryError] = {}
        self.asked = threading.Condition()

    def once(self) -> Node:
        """It never tries again by itself."""
        return self

    def append_fact(self, envelope: Envelope, fact: Fact) -> Receipt:
        self.note_call("append_fact")
        answer = self._append(envelope, fact)
        self._lose()
        if isinstance(answer, BoundaryError):
            raise answer
        return answer

    def append_facts(
        self, items: Sequence[tuple[Envelope, Fact]]
    ) -> Sequence[Receipt | BoundaryError]:
        self.note_call("append_facts")
        self.sizes.append(len(items))
        answers = [self._append(envelope, fact) for envelope, fact in items]
        self._lose()
        return answers

    def put_object(
        self, bucket: str, key: str, blob: Path, *, digest: str | None = None
    ) -> ObjectReceipt:
        self.note_call("put_object")
        data = blob.read_bytes()
        assert digest is not None
        compare(sha256(data).digest(), bytes.fromhex(digest[7:]), size=len(data))
        known = self.objects.setdefault((bucket, key), (digest, len(data)))
        if known[0] != digest:
            raise ObjectConflictError("other bytes")
        self._lose()
        return ObjectReceipt(bucket=bucket, key=key, digest=digest, size=len(data))

    def lookup_fact(self, from_zone: str, message_id: str) -> Receipt | None:
        self.note_call("lookup_fact")
        found = self.facts.get((from_zone, message_id))
        return None if found is None else Receipt(offset=found[0], digest=found[1])

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until something is true after a call."""
        with self.asked:
            assert self.asked.wait_for(condition, 30.0)

    def _append(self, envelope: Envelope, fact: Fact) -> Receipt | BoundaryError:
        refusal = self.refusals.get(envelope.message_id)
        if refusal is not None:
            return refusal
        form = canonical(fact.object_json)
        self.wire.append(msgspec.json.encode((envelope, fact)))
        for reference in references(fact.object_json):
            place = (reference.bucket, reference.key)
            if self.objects.get(place) != (digest_text(reference.digest), reference.size):
                return ArtifactError("not there")
        digest = digest_text(identity_digest(envelope, fact, form))
        return self._store(envelope, digest)

    def _store(self, envelope: Envelope, digest: str) -> Receipt | BoundaryError:
        key = (envelope.from_zone, envelope.message_id)
        with self.asked:
            is_known = key in self.facts
            offset, known = self.facts.setdefault(key, (len(self.facts) + 1, digest))
            if not is_known:
                self.log.append(envelope.message_id)
            self.asked.notify_all()
        if known != digest:
            return ConflictingDuplicateError("other content")
        return Receipt(offset=offset, duplicate=is_known, digest=digest)

    def note_call(self, name: str) -> None:
        with self.asked:
            self.calls.append(name)
            self.asked.notify_all()
        _suffer(self.faults)

    def _lose(self) -> None:
        _suffer(self.losses)


def _suffer(faults: list[Fault]) -> None:
    fault = faults.pop(0) if faults else None
    if isinstance(fault, Exception):
        raise fault
    if fault is not None:
        fault()


def away(**fields: Any) -> NodeUnavailableError:
    """A node that is not there."""
    return NodeUnavailableError("nobody there", **fields)


class AsyncNode:
    """The same node for an event loop."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.node, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call

    def once(self) -> AsyncNode:
        """It never tries again by itself."""
        return self


class DurableNode(Node):
    """A node whose log is a file, so that it outlives the process that fills it."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = str(path)
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS facts"
                " (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, digest TEXT, appends INTEGER)"
            )

    def _store(self, envelope: Envelope, digest: str) -> Receipt | BoundaryError:
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute(
                "INSERT INTO facts (id, digest, appends) VALUES (?, ?, 1)"
                " ON CONFLICT (id) DO UPDATE SET appends = appends + 1",
                (envelope.message_id, digest),
            )
            [seq, known, appends] = db.execute(
                "SELECT seq, digest, appends FROM facts WHERE id = ?", (envelope.message_id,)
            ).fetchone()
        assert known == digest
        return Receipt(offset=seq, duplicate=appends > 1, digest=digest)

    def lookup_fact(self, from_zone: str, message_id: str) -> Receipt | None:
        with closing(sqlite3.connect(self._path)) as db:
            row = db.execute("SELECT seq, digest FROM facts WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else Receipt(offset=row[0], digest=row[1])

    def appends(self) -> dict[str, int]:
        """Which facts are there, in order, and how often each was sent."""
        with closing(sqlite3.connect(self._path)) as db:
            return dict(db.execute("SELECT id, appends FROM facts ORDER BY seq").fetchall())
