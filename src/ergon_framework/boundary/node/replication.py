"""Pulls one peer's facts into this zone: page, artifacts, one commit, confirmation.

The receiver pulls, so a zone needs no way in from its peers to get what they have for it. A pull
that fails is tried again until it succeeds; nothing is confirmed before it is on disk here.
Artifacts are fetched before the facts that refer to them become visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import shlex
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY, AsyncTransport, encode
from ergon_framework.boundary.facts.validation import refuse_larger, validate_fact
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.model import Batch, Envelope, Fact
from ergon_framework.boundary.node import replication_plan
from ergon_framework.boundary.node.objects_api import too_large
from ergon_framework.boundary.node.operations import CreateConsumer, Offload
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.node.replication_plan import Plan
from ergon_framework.boundary.telemetry import pulled
from ergon_framework.boundary.zone import PEER, LocalZone, apart
from ergon_framework.core.zone_link import Gate, Mode
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    ConsumerHeldError,
    DataLossError,
    NodeUnavailableError,
    NotPermittedError,
    ObjectConflictError,
    StoreError,
)
from ergon_framework.ports.factstore import (
    INBOUND,
    OUTBOUND,
    Appended,
    FactStore,
    Gap,
    Link,
    NewFact,
    Quarantined,
    Reference,
)
from ergon_framework.ports.objectstore import Upload
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.telemetry.tracing import is_traced


def is_alone(store: FactStore) -> bool:
    """Whether a zone has one node at most: a folder is locked by its node, a server is shared."""
    return isinstance(store, SqliteFactStore)


def holder_of(store: FactStore) -> str:
    """The name under which a node holds the lease of its consumer at a peer.

    A zone with one node uses the epoch of its store: a node that was killed and started again has
    the same name, and goes on at once. Nodes that share a server have a name each, so that one of
    them pulls and the others wait.
    """
    return f"{store.info().epoch}" if is_alone(store) else _process(os.getpid())


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """A name for this process, the same as long as it lives; a forked one has its own."""
    host = "".join(c for c in socket.gethostname() if (c.isascii() and c.isalnum()) or c in "-.")
    return f"{host[:64] or 'host'}:{pid}:{secrets.token_hex(6)}"


MAX_CONCURRENT_FETCHES = 4
"""Artifacts fetched side by side."""
CHUNK = 1 << 20  # bytes of an artifact that are read at once


class Artifacts:
    """Fetches the artifacts of one peer."""

    def __init__(
        self, zone: LocalZone, peer: str, transport: AsyncTransport, in_thread: Offload
    ) -> None:
        self._zone = zone
        self._peer = peer
        self._transport = transport
        self._in_thread = in_thread
        self._refused: Counter[bytes] = Counter()
        """How often the artifacts of a fact could not be had, by the fact's digest. In memory
        alone: after a restart they are counted anew, and the fact is only set aside later."""
        self.trouble: BaseException | None = None
        """Why the last plan had to be cut, if it was."""

    async def fetched(self, made: Plan, link: Link, batch: Batch, now: float) -> Plan:
        """Fetch the artifacts of a plan; returns its facts as far as their artifacts are here. A
        fact without its artifacts waits, or is quarantined.
        """
        self.trouble = None
        bearing = [fact for fact in made.facts if fact.references]
        gate = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

        async def one(fact: NewFact) -> BaseException | None:
            async with gate:
                try:
                    await self._fetch_all(fact)
                except (BoundaryError, StoreError, OSError) as error:
                    return error
                return None

        for fact, error in zip(bearing, await asyncio.gather(*map(one, bearing)), strict=True):
            if error is None:
                continue
            if self._is_given_up(fact, error):
                self._refuse(made, batch, fact, error, now)
                continue
            # What lies behind it waits too, whole or not: the peer keeps one offset for this zone,
            # and a confirmation beyond this fact would lose it.
            self.trouble = error
            return replication_plan.cut_before(made, link, fact.source_offset or 0)
        return made

    async def take_back(self, item: Quarantined) -> None:
        """Append a released fact to the inbound log. A fact that is still refused is quarantined
        again. An error that may pass is raised, and the fact stays released.
        """
        store = self._zone.store
        try:
            why = await self._refusal(item)
        except (BoundaryError, msgspec.MsgspecError) as error:
            if not replication_plan.is_about_the_fact(error):
                raise
            why = str(error)
        # Two commits, in this order: whoever dies in between takes the fact in once more, and its
        # id is known. The other way round it would be settled and not there.
        state = "quarantined" if why else "settled"
        await self._in_thread(lambda: store.settle(item.id, state, reason=why or "taken in"))

    async def _refusal(self, item: Quarantined) -> str:
        """Append a released fact; returns why it is refused, or nothing."""
        store = self._zone.store
        if item.reason == "gap":
            return ""
        envelope = msgspec.json.decode(item.envelope, type=Envelope)
        fact = msgspec.json.decode(item.fact, type=Fact)
        new = validate_fact(envelope, fact, self._zone.settings.limits, is_thorough=False).new_fact
        if store.largest is not None:
            refuse_larger(new, store.largest)
        new.source_offset = item.offset
        await self._fetch_all(new)
        # The link as it stands: it passed this offset of the peer when the fact was set aside.
        link = await self._in_thread(lambda: store.link(self._peer))
        (outcome,) = await self._in_thread(lambda: store.receive(self._peer, [new], link))
        return "" if isinstance(outcome, Appended) else "it is still refused"

    def _is_given_up(self, fact: NewFact, error: BaseException) -> bool:
        """Whether a fact is set aside: waiting changes nothing, or has not for long enough."""
        if not replication_plan.is_about_the_fact(error):
            return False
        self._refused[fact.digest] += 1
        most = (
            1
            if replication_plan.is_permanent(error)
            else self._zone.settings.pull.artifact_attempts
        )
        return self._refused[fact.digest] >= most

    def _refuse(
        self, made: Plan, batch: Batch, fact: NewFact, error: BaseException, now: float
    ) -> None:
        delivery = next(each for each in batch.facts if each.offset == fact.source_offset)
        made.facts.remove(fact)
        item = replication_plan.set_aside(
            self._peer,
            delivery,
            replication_plan.reason_of(error),
            str(error),
            now,
            (fact.envelope, fact.fact),
        )
        made.refused.append(replace(item, attempts=self._refused.pop(fact.digest)))

    async def _fetch_all(self, fact: NewFact) -> None:
        fact.references = tuple(
            [await self._fetch(each, fact.source_offset) for each in fact.references]
        )
        self._refused.pop(fact.digest, None)

    async def _fetch(self, wanted: Reference, offset: int | None) -> Reference:
        """Fetch an artifact; returns the reference with the name that it has here."""
        if wanted.size > self._zone.settings.limits.object_bytes:
            raise too_large(self._zone.settings.limits.object_bytes)
        here = await self._in_thread(lambda: self._adopted(wanted))
        if here is not None:
            return here
        upload = await self._in_thread(lambda: self._zone.objects.partial(wanted.digest))
        try:
            await self._transfer(wanted, offset, upload)
            named = await self._in_thread(lambda: self._finished(wanted, upload))
        finally:
            await self._in_thread(upload.pause)  # the next attempt goes on from here
        self._zone.events.tell(
            "artifact.fetched", peer=self._peer, bucket=wanted.bucket, size=wanted.size
        )
        return named

    async def _transfer(self, wanted: Reference, offset: int | None, upload: Upload) -> None:
        if upload.size == wanted.size:
            return
        stream = await self._transport.get_object(
            wanted.bucket,
            wanted.key,
            start=upload.size,
            digest=wanted.digest,
            fact_offset=offset,
        )
        try:
            if stream.size != wanted.size:
                raise DataLossError(
                    f"{self._peer} has {stream.size} bytes of {wanted.bucket}/{wanted.key},"
                    f" and its fact says {wanted.size}",
                    reason="artifact_mismatch",
                )
            while piece := await stream.read(CHUNK):
                await self._in_thread(lambda piece=piece: upload.write(piece))  # type: ignore[misc]
        finally:
            await stream.close()

    def _adopted(self, wanted: Reference) -> Reference | None:
        """Name the bytes if they are here already."""
        # Guarded: a sweep could delete bytes without a name between the look and the binding.
        with self._zone.blobs.storing():
            blob = self._zone.objects.stat(wanted.digest)
            is_here = blob is not None and blob.size == wanted.size
            return self._bind(wanted) if is_here else None

    def _finished(self, wanted: Reference, upload: Upload) -> Reference:
        with self._zone.blobs.storing():
            upload.finish(wanted.digest)
            return self._bind(wanted)

    def _bind(self, wanted: Reference) -> Reference:
        store = self._zone.store
        for bucket in (wanted.bucket, apart(wanted.bucket, self._peer)):
            try:
                store.bind(bucket, wanted.key, wanted.digest, wanted.size)
            except ObjectConflictError:
                continue  # the name stands for other bytes here
            return replace(wanted, bucket=bucket)
        raise ObjectConflictError(
            f"the name {wanted.bucket}/{wanted.key} stands for other bytes here, and {self._peer}"
            " has used it for others before",
            remedy="let the peer put the bytes under another name, and tell a fact about that",
        )


declare("boundary.pull.fetched", "boundary.pull.received", "boundary.pull.confirmed")
LINK_POLL_INTERVAL = 1.0
"""Seconds between two checks of a link that is sealed or held by another node, unless it is
woken.
"""
RELEASE_TIMEOUT = 1.0
"""Seconds that saying goodbye to a peer may take."""


class Puller:
    """Pulls the facts of one peer. Lives on an event loop."""

    def __init__(
        self,
        zone: LocalZone,
        peer: str,
        transport: AsyncTransport,
        *,
        in_thread: Offload,
        policy: Callable[[], Policy],
        dice: Callable[[], float] = random.random,
        holder: str | None = None,
    ) -> None:
        self.zone = zone
        self.peer = peer
        self.gate = Gate()
        self._settings = zone.settings.pull
        self._rule = zone.settings.gate.rule()
        self._transport = transport
        self._in_thread = in_thread
        self._policy = policy
        self._dice = dice
        self._consumer = f"{PEER}{zone.name}"
        self._is_alone = is_alone(zone.store)
        self._holder = holder or holder_of(zone.store)
        # One fetch may wait that long; twice, so that a slow one does not cost the lease.
        self._lease = 2 * (self._settings.wait + self._settings.timeout)
        self._artifacts = Artifacts(zone, peer, transport, in_thread)
        self._loop = asyncio.get_running_loop()
        self._signal = AsyncSignal()
        self._is_stopping = False
        self._is_behind = True  # the first fetch does not wait: there may be much to catch up with
        self._lag_high = 0.0
        self._show(lag=0)

    async def run(self) -> None:
        """Pull until :meth:`stop`; after an error of any kind, try again later."""
        while not self._is_stopping:
            try:
                await self.turn()
            except ConsumerHeldError as error:
                await (self._wait_out(error) if self._is_alone else self._stand_by(error))
            except Exception as error:  # whatever a peer answers, the link goes on
                await self._wait_out(error)

    def wake(self) -> None:
        """End the current wait: the peer answers again, or an operator has changed something."""
        self._signal.notify_all()

    def stop(self) -> None:
        """Stop after the current step. The node cancels a fetch that waits."""
        self._is_stopping = True
        self._signal.notify_all()

    async def leave(self) -> None:
        """Release the lease at the peer, so that the next node need not wait until it expires."""
        asked = {"consumer_name": self._consumer, "holder": self._holder}
        # A peer that does not answer ends the lease by its own clock.
        with contextlib.suppress(BoundaryError, OSError):
            await self._transport.call(
                f"{ADMIN}ReleaseLease", encode(asked), timeout=RELEASE_TIMEOUT
            )

    async def turn(self) -> None:
        """Pull one page, or wait while the link is sealed."""
        link = await self._in_thread(self._standing)
        if link.is_sealed:
            self._now_is(self.gate.sealed(), "sealed by an operator")
            await self._signal.wait(self._loop.time() + LINK_POLL_INTERVAL)
            return
        self._now_is(self.gate.opened(), "opened by an operator")
        await self._take_back()
        try:
            batch = await self._fetch()
        except BoundaryError as error:
            if error.reason != "truncated":
                raise
            # Written down here before the peer is asked to go on: once its cursor has moved, it
            # does not tell of the loss again.
            await self._seek(await self._pass(link, error))
            return  # its retention did not wait for this zone
        self.zone.gates[self.peer]["held_by"] = None  # the peer served us: no other node pulls
        failpoint("boundary.pull.fetched")
        # The fetch may have waited long. Meanwhile an operator may have sealed the link, or another
        # node of this zone may have taken in the same page: then this one is thrown away.
        now = await self._in_thread(self._standing)
        if now.is_sealed or now.offset != link.offset:
            return
        if batch.zone not in ("", self.peer):
            raise self._other_zone(batch.zone)
        if replication_plan.is_other_store(link, batch):
            raise self._other_store(link, batch)
        replication_plan.check_page(self.peer, batch)
        if batch.cursor < link.offset:
            await self._go_on(link)
            return  # the next page begins where our log ends, and shows the chain there
        if batch.cursor > replication_plan.explained(link, batch):
            await self._ask_back(link)
            return
        after = await self._receive(link, batch)
        # First the commit here, then the confirmation there. A process that dies in between gets
        # the same page again, and its ids are known: nothing is lost, and nothing is stored twice.
        failpoint("boundary.pull.received")
        if after.offset > batch.cursor:
            await self._call(
                f"{BOUNDARY}ConfirmReceipt",
                {"consumer_name": self._consumer, "offset": after.offset, "holder": self._holder},
            )
            failpoint("boundary.pull.confirmed")
        self._succeeded(batch, after)

    # ---- the peer ----

    async def _fetch(self) -> Batch:
        wait = 0.0 if self._is_behind else self._settings.wait
        asked = {
            "consumer_name": self._consumer,
            "limit": self._settings.page,
            "wait_ms": round(wait * 1000),
            "holder": self._holder,
            "lease_ms": round(self._lease * 1000),
        }
        try:
            return replication_plan.read_page(
                await self._call(f"{BOUNDARY}FetchFacts", asked, wait)
            )
        except BoundaryNotFoundError:
            new = {
                "consumer_name": self._consumer,
                "log": OUTBOUND,
                "from": "start",
                "to_zone": self.zone.name,
            }
            await self._call(f"{ADMIN}{CreateConsumer.__name__}", new)
            return replication_plan.read_page(
                await self._call(f"{BOUNDARY}FetchFacts", asked, wait)
            )

    async def _ask_back(self, link: Link) -> None:
        """Our log ends before what the peer believes we have: we were restored from a backup."""
        try:
            await self._seek(link.offset)
        except BoundaryError as error:
            if error.reason != "truncated":
                raise
            await self._pass(link, error)

    async def _go_on(self, link: Link) -> None:
        """The peer has not received our last confirmation, or has lost it."""
        asked = {
            "consumer_name": self._consumer,
            "offset": link.offset,
            "holder": self._holder,
        }
        try:
            await self._call(f"{BOUNDARY}ConfirmReceipt", asked)
        except BoundaryError as error:
            if error.reason != "not_served":
                raise
            await self._seek(link.offset)

    async def _seek(self, offset: int) -> None:
        asked = {
            "consumer_name": self._consumer,
            "offset": offset,
            "reason": f"the log of {self.zone.name} ends there",
        }
        await self._call(f"{ADMIN}SeekConsumer", asked)

    async def _pass(self, link: Link, error: BoundaryError) -> int:
        """The peer dropped facts before this zone had them: where it goes on, written down."""
        # A process that died between this commit and the seek that follows it has written the loss
        # down; only the cursor of the peer still lies before it.
        if replication_plan.is_behind_loss(link, error.details):
            return link.offset
        after, gaps = replication_plan.dropped(link, error.details, self.zone.clock())
        if not gaps:
            raise error  # it does not say what it dropped
        await self._in_thread(lambda: self.zone.store.receive(self.peer, [], after, gaps=gaps))
        self._told_lost(gaps)
        return after.offset

    async def _call(self, method: str, asked: dict[str, Any], wait: float = 0.0) -> bytes:
        return await self._transport.call(
            method, encode(asked), timeout=wait + self._settings.timeout
        )

    # ---- this zone ----

    def _standing(self) -> Link:
        """The link, sealed also when the whole zone is."""
        store = self.zone.store
        whole = store.link("")  # the seal of the zone is kept as that of a link without a name
        return whole if whole.is_sealed else store.link(self.peer)

    async def _receive(self, link: Link, batch: Batch) -> Link:
        zone, came_at = self.zone, self._loop.time()
        limits, now = zone.settings.limits, zone.clock()
        may_assert = self._may_assert()
        largest = zone.store.largest
        made = await self._in_thread(
            lambda: replication_plan.plan(link, batch, limits, now, may_assert, largest)
        )
        with zone.blobs.pulling():  # what was fetched stays until its fact refers to it
            made = await self._artifacts.fetched(made, link, batch, now)
            after = replication_plan.moved(link, made, batch)
            if after != link:
                # In one commit: the facts, those set aside, the gaps, and how far the peer's log is
                # read. Apart, a process that dies between two commits would lose or repeat some.
                outcomes = await self._in_thread(
                    lambda: zone.store.receive(
                        self.peer, made.facts, after, made.refused, made.gaps
                    )
                )
                for fact, outcome in zip(made.facts, outcomes, strict=True):
                    if isinstance(outcome, Appended):
                        zone.events.note_damage(INBOUND + self.peer, fact.message_id, outcome)
                zone.events.count("pulled", self.peer, len(made.facts))
                self._trace(batch, made, self._loop.time() - came_at)
        if made.facts:
            zone.events.tell(
                "link.pulled", peer=self.peer, facts=len(made.facts), source_offset=after.offset
            )
        self._told_lost(made.gaps)
        for item in made.refused:
            self._told_aside(item)
        # Last: what could be taken in is stored and reported, and the next turn continues behind
        # it.
        if self._artifacts.trouble is not None:
            raise self._artifacts.trouble
        return after

    def _trace(self, batch: Batch, made: replication_plan.Plan, seconds: float) -> None:
        if not is_traced():
            return
        taken = {fact.source_offset for fact in made.facts}
        for delivery in batch.facts:
            if delivery.offset in taken:
                pulled(self.zone.name, self.peer, delivery, seconds)

    def _told_lost(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self.zone.events.warn(
                "link.gap",
                f"{self.peer} gave up its facts {gap.first} to {gap.last}: {gap.reason}",
                peer=self.peer,
                first=gap.first,
                last=gap.last,
                why=gap.reason,
            )

    def _told_aside(self, item: Quarantined) -> None:
        self.zone.events.warn(
            "fact.quarantined",
            f"the fact at {item.offset} of {self.peer} was set aside: {item.reason}",
            consumer=item.consumer,
            offset=item.offset,
            why=item.reason,
            attempts=item.attempts,
        )

    def _may_assert(self) -> Callable[[str], bool]:
        permit = self._policy().permit(self.peer)
        if permit is not None and permit.may_assert(self.peer):
            return permit.may_assert
        raise NotPermittedError(
            f"the policy of {self.zone.name} does not let {self.peer} speak for its own zone",
            reason="not_allowed",
            remedy=f"add assert = [{self.peer!r}] for it to the policy file",
        )

    async def _take_back(self) -> None:
        """Append facts that were quarantined on their way in, and that an operator released."""
        name = f"{replication_plan.PULL}{self.peer}"
        items = await self._in_thread(lambda: self.zone.store.quarantine(name, "released"))
        for item in items:
            try:
                with self.zone.blobs.pulling():
                    await self._artifacts.take_back(item)
            except (BoundaryError, OSError) as error:  # it stays released; the link goes on
                self.zone.events.tell("link.failed", peer=self.peer, error=error, delay=0.0)

    # ---- how it stands ----

    def _succeeded(self, batch: Batch, after: Link) -> None:
        lag = max(0, batch.head_offset - after.offset)
        self._is_behind = bool(batch.facts) and after.offset < batch.head_offset
        oldest = batch.facts[0].recorded_at_unix_ms if batch.facts else None
        seconds = 0.0 if oldest is None else max(0.0, self.zone.clock() - oldest / 1000)
        self._lag_high = max(self._lag_high, seconds)
        self._now_is(self.gate.pulled(self._rule, lag, self._loop.time()), "the peer answers")
        self._show(lag=lag, lag_seconds=seconds if self._is_behind else 0.0, held_by=None)

    async def _stand_by(self, error: ConsumerHeldError) -> None:
        """Wait while another node of this zone pulls, until it stops or its lease ends."""
        holder = str(error.details.get("holder"))
        self._is_behind = True
        # The link is in order, so the gate is told of a successful pull, although another node made
        # it.
        self._now_is(self.gate.pulled(self._rule, 0, self._loop.time()), f"{holder} pulls")
        self._show(lag=0, lag_seconds=0.0, held_by=holder)
        wait = (
            LINK_POLL_INTERVAL
            if error.retry_after is None
            else min(LINK_POLL_INTERVAL, error.retry_after)
        )
        if not self._is_stopping:
            await self._signal.wait(self._loop.time() + wait)

    async def _wait_out(self, error: BaseException) -> None:
        zone = self.zone
        is_other = getattr(error, "reason", "") == "epoch_changed"
        failures = self.gate.failures
        self._now_is(self.gate.failed(self._rule), str(error))
        self._is_behind = True
        self._show(error=str(error), trouble=_trouble(error), epoch_changed=is_other)
        delay = self._settings.backoff().delay(failures, self._dice())
        zone.events.count("pull_failures", self.peer)
        zone.events.tell("link.failed", peer=self.peer, error=error, delay=delay)
        if isinstance(error, StoreError):
            zone.failed(error)
        if not self._is_stopping:
            await self._signal.wait(self._loop.time() + delay)

    def _other_store(self, link: Link, batch: Batch) -> BoundaryError:
        self.zone.events.tell("link.refused", peer=self.peer, epoch=batch.epoch, known=link.epoch)
        return BoundaryError(
            f"the store of {self.peer} is another one than before, or went back in time",
            code="failed_precondition",
            reason="epoch_changed",
            remedy="look into it;"
            f" `ergon boundary open --peer {shlex.quote(self.peer)} --accept-epoch` goes on",
            details={"epoch": batch.epoch, "known": link.epoch},
        )

    def _other_zone(self, zone: str) -> BoundaryError:
        return NotPermittedError(
            f"the peer called {self.peer} is zone {zone!r}",
            code="unauthenticated",
            reason="zone_mismatch",
            remedy="correct the URL, or the name of the peer",
        )

    def _now_is(self, gate: Gate, why: str) -> None:
        before, self.gate = self.gate, gate
        if gate.mode is not before.mode:
            self.zone.events.note(
                "gate.changed",
                f"the link to {self.peer} is {gate.mode}: {why}",
                peer=self.peer,
                mode=gate.mode,
                why=why,
            )
            self._show()

    def _show(self, **fields: Any) -> None:
        shown = self.zone.gates.setdefault(self.peer, {"lag_seconds": 0.0, "error": ""})
        if self.gate.mode is not Mode.AUTONOMOUS and "error" not in fields:
            fields |= {"error": "", "trouble": "", "epoch_changed": False}
        shown.update(fields)
        shown.update(mode=str(self.gate.mode), failures=self.gate.failures, lag_high=self._lag_high)


def _trouble(error: BaseException) -> str:
    """The cause of a failed pull: the peer does not answer, this zone's store fails, or neither."""
    if isinstance(error, StoreError) and not isinstance(error, BoundaryError):
        return "store"
    is_away = isinstance(error, NodeUnavailableError | OSError)
    return "away" if is_away and getattr(error, "reason", "") != "sealed" else "refused"
