"""One zone in this process: every operation, independent of the transport of its caller.

A ``LocalZone`` starts nothing by itself. Any thread may call it; a call returns when its effect is
on disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from ergon_framework.boundary.anchor import Anchor
from ergon_framework.boundary.append_batcher import AppendBatcher, Receipts, answer, store_trouble
from ergon_framework.boundary.arguments import FUNCTION, NAME, check_given, of
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.facts.validation import ValidatedFact, refuse_larger, validate_fact
from ergon_framework.boundary.factstore.consumers import no_fact, no_object
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.references import (
    are_recorded,
    left_to_read,
    record_references,
)
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.model import (
    EnvelopeLike,
    FactLike,
    ObjectReceipt,
    Receipt,
)
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import clock_of, folders_of, open_stores, zone_moved
from ergon_framework.boundary.telemetry import ZoneEvents
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    ConfigurationError,
    FactInvalidError,
    NodeUnavailableError,
    ObjectConflictError,
    StoreBrokenError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
    ZoneMovedError,
)
from ergon_framework.ports.factstore import (
    INBOUND,
    NEW_EPOCH,
    OUTBOUND,
    FactStore,
    Fetched,
    NewFact,
    StoredObject,
)
from ergon_framework.ports.objectstore import Blob, ObjectStore, Upload
from ergon_framework.ports.transfer import Destination
from ergon_framework.storage.objectstore.blob_io import SharedObjectStore
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore

T = TypeVar("T")


class BlobGuard:
    """Keeps a sweep from deleting bytes that are about to be named. Any thread may use it.

    An object is stored first and named afterwards, so for a moment there are bytes without a name.
    The guard lets nothing be deleted meanwhile: not what is being stored, and not what a fact of a
    peer that is being taken in may refer to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._storing = 0
        self._pulling = 0

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Hold this while bytes are stored and named."""
        with self._lock:
            self._storing += 1
        try:
            yield
        finally:
            with self._lock:
                self._storing -= 1

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """Hold this while artifacts are fetched and the facts that refer to them are appended."""
        with self._lock:
            self._pulling += 1
        try:
            yield
        finally:
            with self._lock:
                self._pulling -= 1

    def unname(self, unbind: Callable[[], T]) -> T:
        """Remove a name, unless a fact may be about to refer to it."""
        # Names are not taken away while a pull runs: it has found the object here and will append a
        # fact that refers to it.
        with self._lock:
            if self._pulling:
                raise NodeUnavailableError(
                    "artifacts of a peer are being taken in", reason="busy", remedy="try again"
                )
            return unbind()

    def remove(self, is_free: Callable[[], bool], delete: Callable[[], Any]) -> bool:
        """Delete bytes if no thread is storing and no name stands for them; whether it was done.

        ``is_free`` is asked within the lock: nothing can be named between the answer and the
        deletion. What is left now goes with a later sweep.
        """
        with self._lock:
            if self._storing or not is_free():
                return False
            delete()
            return True


PEER = "zone:"
"""What precedes the peer's name in the name of the consumer it pulls through."""
HARD, SOFT = 0.8, 0.5
"""Shares of the capacity at which appends are refused, and at which the operator is warned."""
TOLD_EPOCH = "told_epoch"
"""The attribute with the epoch that was reported last."""
MAX_READ = 10_000
"""Facts that are read within one call, at most."""


ZONE = {"name": NAME, "settings": of(ZoneSettings, "give ZoneSettings"), "clock": FUNCTION}
"""What each of the arguments has to be."""


class LocalZone:
    """A zone's log, ledger, objects, consumers and links."""

    def __init__(
        self,
        name: str,
        store: FactStore,
        objects: ObjectStore,
        settings: ZoneSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        held: ExitStack | None = None,
    ) -> None:
        self.settings = settings or ZoneSettings()
        check_given({"name": name, "settings": self.settings, "clock": clock}, ZONE)
        self.name = name
        self.store = store
        self.objects = objects
        self.clock = clock
        self.events = ZoneEvents(clock)
        self.answering = Receipts(name, self.settings, self.events)
        store.watch_commits(self._committed)
        self.blobs = BlobGuard()
        self._batcher = AppendBatcher(self)
        self.gates: dict[str, dict[str, Any]] = {}
        """The state of the link to each peer, as the peer's puller reports it."""
        self.certificate_expiry: float | None = None
        self.is_broken = False
        """The disk did not confirm a write: nothing is appended until the node starts again."""
        self.append_trouble: str | None = None
        """Why the last append failed; None when it did not."""
        self.looked_at = ("", "")
        """The last object name that a status checked; the next check starts after it."""
        self.damage: str | None = None
        """The damage found in the store, or None."""
        self.anchor: Anchor | None = None
        """The ends of the logs, kept outside of the store to notice one that was set back."""
        known = self.settings.known_zones
        self._known_zones = None if known is None else {name, *self.settings.peers, *known}
        self._are_references_known = False
        self.capacity = _allowed(self.settings.capacity_bytes)
        self.folders: tuple[Path, ...] = ()
        """The folders of this machine that are locked for it."""
        self._held = held or ExitStack()

    @classmethod
    def open(
        cls, name: str, settings: ZoneSettings, *, clock: Callable[[], float] | None = None
    ) -> LocalZone:
        """Open the zone that the settings describe.

        No other process may have its folders open; stores on servers may be shared with other
        nodes.
        """
        given = {"name": name, "settings": settings, "clock": clock or time.time}
        check_given(given, ZONE)  # before anything is made
        with ExitStack() as held:
            for folder in folders_of(settings):
                # Locked before the store is opened: a second process must not even look at the
                # tables of a zone that is served.
                held.callback(DataFolder.lock(folder).close)
            store, objects = open_stores(name, settings, clock=clock)
            held.callback(objects.close)
            held.callback(store.close)
            # After the store is open: the anchor compares its highest offsets with those that were
            # acknowledged, which shows a store restored from a backup.
            anchor = _check_anchor(store, folders_of(settings))
            if anchor is not None:
                held.callback(anchor.close)
            if isinstance(objects, FilesystemObjectStore | SharedObjectStore):
                # Where a bucket is away, maintenance says it before it removes anything.
                is_shared = isinstance(objects, SharedObjectStore)
                with suppress(StoreUnavailableError) if is_shared else nullcontext():
                    objects.own(store.info().epoch)
            own_clock = clock or clock_of(store)
            zone = cls(name, store, objects, settings, clock=own_clock, held=held.pop_all())
            zone.anchor = anchor
            zone.folders = tuple(folders_of(settings))
            if isinstance(store, SqliteFactStore):
                # Bounded in time: a damaged page is better known at the start, but a large file
                # must not delay the start for minutes.
                zone.damage = store.quick_check(settings.check_seconds)
            zone.tell_new_epoch()
            return zone

    # ---- producers ----

    def validate(self, envelope: EnvelopeLike, fact: FactLike) -> ValidatedFact:
        """Check one fact; ``FactInvalidError`` names every field that is wrong."""
        limits, strict = self.settings.limits, self.settings.strict_ids
        found = validate_fact(
            envelope,
            fact,
            limits,
            known_zones=self._known_zones,
            strict_ids=strict,
            is_thorough=strict,
            clock=self.clock,
        )
        if (largest := self.store.largest) is not None:
            refuse_larger(found.new_fact, largest)
        return found

    @property
    def pending_appends(self) -> int:
        """The number of calls of ``append`` that wait for their turn."""
        return self._batcher.appends.pending

    def append(self, envelope: EnvelopeLike, fact: FactLike) -> Receipt:
        """Append one fact; the answer means that it is on disk."""
        began = time.perf_counter()
        told = self._batcher.append(envelope, fact)
        self.events.append_seconds.add(time.perf_counter() - began)
        if isinstance(told, BoundaryError):
            raise told
        return told

    def append_in(self, connection: Any, envelope: EnvelopeLike, fact: FactLike) -> Receipt:
        """Append one fact in the caller's own transaction; it is there when the caller commits.

        The store must be on PostgreSQL, and ``connection`` one of psycopg or SQLAlchemy, or a
        session, to the same database. While it is open no other caller can append here: commit
        soon.
        """
        append = getattr(self.store, "append_in", None)
        if append is None:
            raise ConfigurationError(
                f"the facts of zone {self.name} are in a store that takes part in no transaction of"
                " others",
                remedy="keep them on PostgreSQL (store = 'postgresql://…'), or append to an outbox",
            )
        try:
            valid = self.validate(envelope, fact)
            new = self.prepared(valid)
            self.check_bytes(new)
            # On the caller's connection and past the group commit: only the caller can say when
            # this transaction ends.
            [outcome] = append(connection, OUTBOUND, [new], capacity=self.capacity)
        except StoreError as error:
            if type(error) is StoreError:  # a mistake of the caller's, which no waiting fixes
                raise
            raise self.failed(error) from error
        except BoundaryError as error:
            self.answering.refused(error)
            raise
        told = answer(new, outcome, strict_envelope=self.settings.strict_envelope)
        if isinstance(told, BoundaryError):
            self.answering.refused(told, new)
            raise told
        return told  # not reported yet: the caller may still roll back

    def append_all(
        self, validated: Sequence[ValidatedFact | BoundaryError]
    ) -> list[Receipt | BoundaryError]:
        """Append facts in order in one commit, each with its own answer."""
        began = time.perf_counter()
        good = [each for each in validated if isinstance(each, ValidatedFact)]
        try:
            facts = [self.prepared(each) for each in good]
            outcomes = self.store.append(OUTBOUND, facts, capacity=self.capacity) if facts else []
        except StoreError as error:
            raise self.failed(error, is_append=True) from error
        seconds = time.perf_counter() - began
        self.append_trouble = None if facts else self.append_trouble
        told = self.answering.many(good, outcomes, seconds)
        if len(told) == len(validated):
            return told
        answers = iter(told)
        return [next(answers) if isinstance(each, ValidatedFact) else each for each in validated]

    def prepared(self, valid: ValidatedFact) -> NewFact:
        """The fact as the store takes it."""
        new = valid.new_fact
        if new.references and not self.settings.verify_refs:
            new.needs_artifacts = False
        return new

    def check_bytes(self, fact: NewFact) -> None:
        """Refuse a fact whose artifact was put, and whose bytes the disk has lost since."""
        if not fact.references or not fact.needs_artifacts:
            return
        # A duplicate is answered with its first offset, even if its bytes are gone by now.
        if self.store.find(fact.from_zone, fact.message_id, OUTBOUND):
            return  # what is in the log already has its offset for ever
        for wanted in fact.references:
            bound = self.store.object(wanted.bucket, wanted.key)
            if bound is None or bound.digest != wanted.digest:
                continue  # the log itself refuses that
            blob = self.objects.stat(wanted.digest)
            if blob is None or blob.size != bound.size:
                raise ArtifactError(
                    f"the bytes of {wanted.bucket}/{wanted.key} are missing or cut off",
                    remedy="put the same bytes again, then append the fact",
                    details={"bucket": wanted.bucket, "key": wanted.key},
                )

    def failed(self, error: StoreError, *, is_append: bool = False) -> BoundaryError:
        """The answer to a failure of the store."""
        if isinstance(error, ZoneMovedError):
            return error  # an answer already: of this zone, or of a peer
        gone = Destination.of_details(error.details)
        told = zone_moved(self.name, self.settings, gone) if gone else store_trouble(error)
        self.is_broken |= isinstance(error, StoreBrokenError)
        if is_append:
            self.append_trouble = error.message
        if isinstance(error, StoreSchemaError):
            self.damage = error.message
        self.events.note_store_error(self.name, error, is_append=is_append)
        self.events.count("append_failures", told.reason)
        return told

    def _committed(self, facts: int, seconds: float) -> None:
        self.append_trouble = None
        self.events.committed(facts, seconds)

    def takes_facts(self) -> bool:
        """Whether an append would be accepted, as far as that is known without one.

        After one that failed, a small write shows whether the store can be written again: producers
        do not send facts to a node that is not ready.
        """
        self.store.logs()
        if self.is_broken or self.damage is not None or self.low_disk_space() is not None:
            return False
        if self.append_trouble is not None:
            self.store.set_attribute("probed", str(self.clock()))
            self.append_trouble = None
        return True

    def low_disk_space(self) -> str | None:
        """Which of the zone's folders has less room than ``limits.free_bytes``; None when none."""
        free_bytes = self.settings.limits.free_bytes
        found = (low_disk_space(folder, free_bytes) for folder in folders_of(self.settings))
        return next((each for each in found if each is not None), None)

    def lookup(self, from_zone: str, message_id: str, log: str | None = None) -> dict[str, Any]:
        """What the ledger knows about an id."""
        found = self.store.find(from_zone, message_id, log)
        if found is None:
            raise no_fact(from_zone, message_id)
        is_whole = len(found.digest) == 32
        return {
            "offset": found.offset,
            "digest": digest_text(found.digest) if is_whole else f"sha256:{found.digest.hex()}",
            "is_digest_whole": is_whole,
            "state": "retained" if found.is_retained else "truncated",
            "log": found.log,
        }

    # ---- objects ----

    def bound(self, bucket: str, key: str, blob: Blob) -> ObjectReceipt:
        """Name bytes that are on disk."""
        stored = self.store.bind(bucket, key, blob.digest, blob.size)
        self.events.count("puts")
        return ObjectReceipt(
            bucket=bucket, key=key, digest=digest_text(stored.digest), size=stored.size
        )

    def put(
        self, bucket: str, key: str, data: bytes, expected: bytes | None = None
    ) -> ObjectReceipt:
        """Store bytes under a name; the answer means that they are on disk."""
        upload = self.objects.upload()
        try:
            upload.write(data)
            return self.finished(bucket, key, upload, expected)
        finally:
            upload.abort()

    def finished(
        self, bucket: str, key: str, upload: Upload, expected: bytes | None
    ) -> ObjectReceipt:
        """Sync uploaded bytes to disk and name them."""
        blob = None
        try:
            with self.blobs.storing():
                blob = upload.finish(expected)
                return self.bound(bucket, key, blob)
        except ObjectConflictError:
            if blob is not None:
                self._drop(blob.digest)
            raise

    def delete(self, bucket: str, key: str, *, before: float | None = None) -> None:
        """Remove an object to which no fact refers; with ``before``, only one as old as that."""
        self.found(bucket, key)
        if not self.knows_references(most=MAX_READ):
            raise NodeUnavailableError(
                f"zone {self.name} is still reading which artifacts its facts refer to",
                reason="starting",
                remedy="try again later: nothing is deleted before that is known",
            )
        freed = self.blobs.unname(lambda: self.store.unbind(bucket, key, before=before))
        if freed is not None:
            self._drop(freed.digest)

    def knows_references(
        self, is_stopping: Callable[[], bool] = lambda: False, *, most: int | None = None
    ) -> bool:
        """Whether all that facts refer to is marked. What an earlier version left out is read now,
        unless that is ``most`` facts or more.
        """
        if not self._are_references_known:
            if not are_recorded(self.store):
                if most is not None and left_to_read(self.store) >= most:
                    return False
                if not record_references(self.store, is_stopping):
                    return False
            self._are_references_known = True
        return True

    def _drop(self, digest: bytes) -> None:
        """Delete bytes that no name stands for."""
        was_removed = self.blobs.remove(
            lambda: not self.store.is_bound(digest), lambda: self.objects.delete(digest)
        )
        # Another node may have named the same bytes just before they went.
        if (
            was_removed
            and isinstance(self.objects, SharedObjectStore)
            and self.store.is_bound(digest)
        ):
            self.objects.restore(digest)

    def found(self, bucket: str, key: str, digest: bytes | None = None) -> StoredObject:
        """The object of a name; with a ``digest``, the object with exactly those bytes, if it is
        here.
        """
        stored = self.store.object(bucket, key)
        if digest is not None and (stored is None or stored.digest != digest):
            for link in self.store.links():
                other = self.store.object(apart(bucket, link.peer), key)
                if other is not None and other.digest == digest:
                    return other
            stored = None
        if stored is None:
            raise no_object(bucket, key)
        return stored

    # ---- consumers ----

    def serve(
        self, name: str, limit: int, max_bytes: int | None, holder: str | None, lease: float | None
    ) -> Fetched:
        """A page for a consumer, within the limits of this zone."""
        limits = self.settings.limits
        most = min(max_bytes or limits.page_bytes, limits.page_bytes)
        seconds = self.settings.lease if lease is None else lease
        self.events.count("fetches")
        self.check_seal(name)
        return self.store.serve(
            name, min(limit, limits.page_items), most, holder=holder, lease=seconds
        )

    def check_seal(self, consumer: str) -> None:
        """Refuse a peer while its link, or the whole zone, is sealed; others never."""
        if not consumer.startswith(PEER):
            return
        for peer in ("", consumer.removeprefix(PEER)):
            link = self.store.link(peer)
            if link.is_sealed:
                raise NodeUnavailableError(
                    f"zone {self.name} is sealed for {peer or 'every peer'}",
                    reason="sealed",
                    remedy="an operator opens it again with `ergon boundary open`",
                )

    def seek(self, name: str, offset: int, reason: str) -> dict[str, Any]:
        """Set a cursor by hand, and write that into the journal."""
        before = self.store.consumer(name).cursor
        after = self.store.seek(name, offset, reason=reason or "no reason given")
        self.events.note(
            "consumer.sought",
            f"the cursor of {name} was set from {before} to {after.cursor}",
            consumer=name,
            before=before,
            cursor=after.cursor,
            reason=reason,
        )
        return {"consumer_name": name, "cursor": after.cursor, "before": before}

    # ---- upkeep ----

    def tell_new_epoch(self) -> None:
        """Report, once, that the store has begun a new epoch, and why."""
        why, epoch = self.store.attribute(NEW_EPOCH), self.store.info().epoch
        if why is None or self.store.attribute(TOLD_EPOCH) == epoch:
            return
        self.events.warn(
            "epoch.changed",
            f"the store of zone {self.name} begins a new epoch: {why.partition(' ')[2]}",
            zone=self.name,
            epoch=epoch,
            why=why.partition(" ")[2],
        )
        if self.anchor is not None and self.anchor.now.epoch != epoch:
            self.anchor.begin(epoch, {each.name: each.head for each in self.store.logs()})
        self.store.set_attribute(TOLD_EPOCH, epoch)

    # ---- end ----

    def close(self) -> None:
        """Close the stores and release the folders."""
        self._batcher.close()
        self.objects.close()
        self.store.close()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _check_anchor(store: FactStore, folders: Sequence[Path]) -> Anchor | None:
    """Compare a store with the anchor in its folder, which from now on follows it.

    One that lost what it had acknowledged begins a new epoch. A zone without a folder has no
    anchor, and neither has one in memory.
    """
    if not folders or isinstance(store, MemoryFactStore):
        return None
    anchor = Anchor(folders[0])
    try:
        heads = {each.name: each.head for each in store.logs()}
        epoch = store.info().epoch
        why = _why_renewed(store, anchor, epoch, heads)
        if why:
            epoch = store.renew_epoch(epoch, why).epoch
        anchor.begin(epoch, heads)
    except BaseException:
        anchor.close()
        raise
    store.watch_heads(anchor.reached)
    return anchor


def _why_renewed(store: FactStore, anchor: Anchor, epoch: str, heads: Mapping[str, int]) -> str:
    """Why a store must begin a new epoch; empty when it need not."""
    lost = anchor.lost(epoch, heads)
    if lost:
        return f"it has lost what it acknowledged: {lost}"
    if anchor.now.epoch in ("", epoch):
        return ""
    other = f"it is not the store of epoch {anchor.now.epoch} that was there before"
    renewed = store.attribute(NEW_EPOCH)
    if isinstance(store, SqliteFactStore):
        is_known = renewed is not None and store.attribute(TOLD_EPOCH) != epoch
        return "" if is_known else other
    # The epoch of a server may have been changed by another node, which has told why. One that
    # has never been, and has less than was acknowledged, was emptied, or is not the one.
    shortened_logs = anchor.now.shortened_logs(heads)
    return f"{other}: {shortened_logs}" if shortened_logs and renewed is None else ""


def apart(bucket: str, peer: str) -> str:
    """The bucket for a peer's artifact whose name stands for other bytes here."""
    return f"{bucket}@{peer}"


def _allowed(capacity: int | None) -> int | None:
    return None if capacity is None else int(capacity * HARD)


def check_log(name: str, logs: Iterable[str]) -> str:
    """A log that exists or may come to exist; ``FactInvalidError`` for any other."""
    if name == OUTBOUND or name in logs:
        return name
    if name.startswith(INBOUND) and len(name) > len(INBOUND):
        return name  # a consumer may be there before the peer is
    raise FactInvalidError(
        f"there is no log {name!r}",
        reason="unknown_log",
        remedy="name outbound, or inbound:<zone of a peer>",
        details={"field": "log"},
    )


def low_disk_space(folder: Path, free_bytes: int) -> str | None:
    """How much room the disk of a folder has left, if that is less; None where it is not there."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None  # the caller that needs it reports it
    free = found.f_bavail * found.f_frsize
    is_little = found.f_blocks and free < free_bytes
    return f"{folder} has {free >> 20} MiB left" if is_little else None
