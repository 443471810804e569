"""Appends over HTTP: checked on the event loop, queued, and answered when they are on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from ergon_framework.boundary.facts.admission import Admission, parse_append, parse_batch
from ergon_framework.boundary.http.exchange import Caller, Exchange
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.offloop import InThread
from ergon_framework.boundary.serving.operations import demand
from ergon_framework.boundary.serving.policy import Permit
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import OUTBOUND, Outcome

T = TypeVar("T")
Pending: TypeAlias = tuple[Exchange, Admission, float]
"""An append on its way to disk, and when it came."""


class AppendRoutes:
    """What stands behind ``AppendFact`` and ``AppendFacts``. Lives on an event loop."""

    def __init__(
        self,
        zone: Zone,
        in_thread: InThread,
        permitted: Callable[[Caller, str], Permit],
        denied: Callable[[Caller, str], None],
    ) -> None:
        self._zone = zone
        self._in_thread = in_thread
        self._permitted = permitted
        self._denied = denied
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Pending] = []

    def append(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """One fact; it is answered when the group it goes into is on disk."""
        began = perf_counter()
        zone = self._zone
        zone.telling.count("appends")
        permit = self._permitted(exchange.caller, "AppendFact")
        try:
            admission = zone.admit(*parse_append(exchange.body, zone.settings.limits))
            if not permit.is_free:
                self._check_zones(permit, exchange.caller, admission)
        except BoundaryError as error:
            zone.answering.refused(error)
            raise
        new = zone.prepared(admission)
        if new.references:
            return self._append_founded(exchange, admission, began)
        self._gathered.append((exchange, admission, began))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._submit)
        return None

    def _submit(self) -> None:
        """What the sockets brought in one turn of the loop goes to the writer together."""
        gathered, self._gathered = self._gathered, []
        facts = [admission.new_fact for _exchange, admission, _began in gathered]
        done = partial(self._appended, gathered)
        try:
            self._zone.store.append_soon(OUTBOUND, facts, done, capacity=self._zone.capacity)
        except StoreError as error:
            self._answer(gathered, error)

    async def _append_founded(self, exchange: Exchange, admission: Admission, began: float) -> None:
        """An append whose artifacts must be on disk, where they have to be looked for first."""
        zone, loop = self._zone, self._loop
        new = admission.new_fact
        try:
            await self._in_thread(lambda: zone.check_bytes(new))
        except BoundaryError as error:
            zone.answering.refused(error, new)
            raise
        told: asyncio.Future[list[Outcome] | BaseException] = loop.create_future()
        zone.store.append_soon(
            OUTBOUND,
            [new],
            lambda outcomes: _crossed(loop, told, outcomes),
            capacity=zone.capacity,
        )
        outcomes = await told
        outcome = outcomes[0] if isinstance(outcomes, list) else outcomes
        seconds = perf_counter() - began
        self._reply(exchange, admission, outcome, seconds)
        zone.telling.append_seconds.add(seconds)

    def _appended(self, gathered: list[Pending], told: list[Outcome] | BaseException) -> None:
        """In the writer's thread, once per group."""
        self._loop.call_soon_threadsafe(self._answer, gathered, told)

    def _answer(self, gathered: list[Pending], told: list[Outcome] | BaseException) -> None:
        outcomes = told if isinstance(told, list) else [told] * len(gathered)
        now, seen = perf_counter(), self._zone.telling.append_seconds
        for (exchange, admission, began), outcome in zip(gathered, outcomes, strict=True):
            self._reply(exchange, admission, outcome, now - began)
            seen.add(now - began)

    def _reply(
        self,
        exchange: Exchange,
        admission: Admission,
        told: Outcome | BaseException,
        seconds: float,
    ) -> None:
        if isinstance(told, BaseException):
            error = (
                self._zone.failed(told, is_append=True) if isinstance(told, StoreError) else told
            )
            exchange.fail(error)
            return
        answer = self._zone.answering.one(admission, told, seconds)
        if isinstance(answer, BoundaryError):
            exchange.fail(answer)
            return
        exchange.reply(200, _shown(answer))

    def _check_zones(self, permit: Permit, caller: Caller, admission: Admission) -> None:
        fact = admission.new_fact
        is_allowed = permit.may_assert(fact.from_zone)
        if not is_allowed or not permit.may_target(fact.to_zone):
            self._zone.telling.count("denied", "zone")
            self._denied(caller, "AppendFact")
        demand(
            is_allowed,
            permit,
            f"speak for zone {fact.from_zone!r}",
            field="envelope.from_zone",
        )
        demand(
            permit.may_target(fact.to_zone),
            permit,
            f"address zone {fact.to_zone!r}",
            field="envelope.to_zone",
        )
        for bucket in {each.bucket for each in fact.references}:
            demand(permit.may_use_bucket(bucket), permit, f"use the bucket {bucket}", bucket=bucket)

    async def append_all(self, exchange: Exchange) -> None:
        """Facts in order in one commit, each with an outcome of its own."""
        began = perf_counter()
        permit = self._permitted(exchange.caller, "AppendFacts")
        count, answer = await self._in_thread(
            lambda: self._append_batch(permit, exchange.caller, exchange.body)
        )
        exchange.reply(200, answer)
        self._zone.telling.append_seconds.add(perf_counter() - began, count)

    def _append_batch(self, permit: Permit, caller: Caller, body: bytes) -> tuple[int, bytes]:
        """How many were asked for, and the answer."""
        zone = self._zone
        items = parse_batch(body, zone.settings.limits)
        zone.telling.count("appends", times=len(items))
        admissions: list[Admission | BoundaryError] = []
        for item in items:
            try:
                if isinstance(item, BoundaryError):
                    raise item
                admission = zone.admit(*item)
                self._check_zones(permit, caller, admission)
                zone.check_bytes(zone.prepared(admission))
                admissions.append(admission)
            except BoundaryError as error:
                zone.answering.refused(error)
                admissions.append(error)
        told = zone.append_all(admissions)
        return len(told), b'{"results":[%b]}' % b",".join(map(_shown, told))


def _shown(told: Receipt | BoundaryError) -> bytes:
    """One answer as JSON."""
    if isinstance(told, BoundaryError):
        return json.dumps({"error": told.to_dict()}).encode()
    duplicate = b"true" if told.duplicate else b"false"
    return b'{"offset":%d,"duplicate":%b,"digest":"%b"}' % (
        told.offset,
        duplicate,
        told.digest.encode(),
    )


def _crossed(loop: asyncio.AbstractEventLoop, to: asyncio.Future[T], value: T) -> None:
    """Hand a value over from another thread."""
    loop.call_soon_threadsafe(lambda: None if to.done() else to.set_result(value))
