"""Fetches what the facts of a peer refer to, before the facts become visible here."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import msgspec

from ergon_framework.boundary.client.transport import AsyncTransport
from ergon_framework.boundary.facts.admission import admitted, refuse_larger
from ergon_framework.boundary.linking import pulling
from ergon_framework.boundary.linking.pulling import Plan
from ergon_framework.boundary.model import Batch, Envelope, Fact
from ergon_framework.boundary.offloop import InThread
from ergon_framework.boundary.serving.putting import too_large
from ergon_framework.boundary.zone import Zone, apart
from ergon_framework.errors import BoundaryError, DataLossError, ObjectConflictError, StoreError
from ergon_framework.ports.factstore import Appended, Link, NewFact, Quarantined, Reference
from ergon_framework.ports.objectstore import Upload

AT_ONCE = 4
"""Artifacts fetched side by side."""
PIECE = 1 << 20


class Artifacts:
    """The artifacts of one peer."""

    def __init__(
        self, zone: Zone, peer: str, transport: AsyncTransport, in_thread: InThread
    ) -> None:
        self._zone = zone
        self._peer = peer
        self._transport = transport
        self._in_thread = in_thread
        self._refused: Counter[bytes] = Counter()
        """How often the artifacts of a fact could not be had, by the fact's digest."""
        self.trouble: BaseException | None = None
        """Why the last plan had to be cut, if it was."""

    async def fetched(self, made: Plan, link: Link, batch: Batch, now: float) -> Plan:
        """The plan as far as its artifacts are here: those that are not, wait or are set aside."""
        self.trouble = None
        bearing = [fact for fact in made.facts if fact.references]
        gate = asyncio.Semaphore(AT_ONCE)

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
            self.trouble = error
            return pulling.cut_before(made, link, fact.source_offset or 0)
        return made

    async def take_back(self, item: Quarantined) -> None:
        """Let a fact that was set aside, and released, into the inbound log after all.

        One that still cannot enter is set aside again; trouble that may pass is raised, and the
        fact stays released.
        """
        store = self._zone.store
        try:
            why = await self._refusal(item)
        except (BoundaryError, msgspec.MsgspecError) as error:
            if not pulling.is_about_the_fact(error):
                raise
            why = str(error)
        state = "quarantined" if why else "settled"
        await self._in_thread(lambda: store.settle(item.id, state, reason=why or "taken in"))

    async def _refusal(self, item: Quarantined) -> str:
        """Take a released fact in; why that cannot be, or nothing."""
        store = self._zone.store
        if item.reason == "gap":
            return ""
        envelope = msgspec.json.decode(item.envelope, type=Envelope)
        fact = msgspec.json.decode(item.fact, type=Fact)
        new = admitted(envelope, fact, self._zone.settings.limits, is_thorough=False).new_fact
        if store.largest is not None:
            refuse_larger(new, store.largest)
        new.source_offset = item.offset
        await self._fetch_all(new)
        link = await self._in_thread(lambda: store.link(self._peer))
        (outcome,) = await self._in_thread(lambda: store.receive(self._peer, [new], link))
        return "" if isinstance(outcome, Appended) else "it is still refused"

    def _is_given_up(self, fact: NewFact, error: BaseException) -> bool:
        """Whether a fact is set aside: waiting changes nothing, or has not for long enough."""
        if not pulling.is_about_the_fact(error):
            return False
        self._refused[fact.digest] += 1
        most = 1 if pulling.is_certain(error) else self._zone.settings.pull.artifact_attempts
        return self._refused[fact.digest] >= most

    def _refuse(
        self, made: Plan, batch: Batch, fact: NewFact, error: BaseException, now: float
    ) -> None:
        delivery = next(each for each in batch.facts if each.offset == fact.source_offset)
        made.facts.remove(fact)
        item = pulling.set_aside(
            self._peer,
            delivery,
            pulling.reason_of(error),
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
        """Have the artifact here; the reference under the name it has here."""
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
        self._zone.telling.tell(
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
            while piece := await stream.read(PIECE):
                await self._in_thread(lambda piece=piece: upload.write(piece))  # type: ignore[misc]
        finally:
            await stream.close()

    def _adopted(self, wanted: Reference) -> Reference | None:
        """Name the bytes if they are here already."""
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
