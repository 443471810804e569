"""The flows of a PostgreSQL job store: the calls of their port, each one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ergon_framework.core.flow import FlowEvent, FlowStatus
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.flow_settlement import flow_taken, is_as_read
from ergon_framework.jobs.stores.pages import ABOVE_ALL, flow_page
from ergon_framework.jobs.stores.postgres.flow_tables import StepSettlement, flow_row, purge_flow
from ergon_framework.jobs.stores.postgres.insert import ExternalInsert, refuse_duplicate_ids, taken
from ergon_framework.jobs.stores.postgres.settle import Effects, lock_keys, shorten, wake
from ergon_framework.jobs.stores.postgres.statements import statements, texts
from ergon_framework.jobs.stores.postgres.transactions import (
    PostgresTransactions,
    PostgresTx,
    is_conflict,
)
from ergon_framework.jobs.stores.transitions import id_taken
from ergon_framework.ports.flow import Flow, Join, NewFlow, SignalOutcome
from ergon_framework.ports.jobstore import EnqueueResult, NewJob, Topic
from ergon_framework.storage.postgres.external_transaction import PostgresJoinable

T = TypeVar("T")

_SQL = statements("flows.sql")
IDS_PER_QUERY = 10_000


class PostgresFlows:
    """The flows of one job store."""

    def __init__(self, transactions: PostgresTransactions, external: ExternalInsert) -> None:
        self._transactions = transactions
        self._external = external

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps in one commit, or steps of a flow that is there."""
        refuse_duplicate_ids(steps)
        try:
            self._add(flow, steps)
        except StoreUnavailableError as error:
            # The ids of the steps were made for this very call: one that is there tells.
            if not error.details.get("is_lost") or not self._taken(steps):
                raise
        return [EnqueueResult(step.id, True) for step in steps]

    def _add(self, flow: NewFlow, steps: Sequence[NewJob]) -> None:
        topics = {Topic.WORK}

        def work(tx: PostgresTx) -> None:
            settlement = StepSettlement(tx)
            settlement.flows.add(flow, steps)
            settlement.finish()
            topics.update(settlement.topics())

        try:
            self._transactions.stepwise(work, "add", topics=topics)
        except StoreError as error:
            raise self._refusal(flow, steps, error) from error

    def add_in(
        self, connection: PostgresJoinable, flow: NewFlow, steps: Sequence[NewJob]
    ) -> list[EnqueueResult]:
        """The same in the caller's own transaction on the same database, which the caller commits.

        ``connection`` is one of psycopg, or a connection or session of SQLAlchemy with psycopg
        under it. Workers are woken by the caller's commit.
        """
        refuse_duplicate_ids(steps)
        self._transactions.refuse_to_write()
        try:
            with self._external.joined(connection) as (tx, _):
                settlement = StepSettlement(tx)
                settlement.flows.add(flow, steps)
                settlement.finish()
                self._transactions.notify_on_commit(tx, {Topic.WORK} | settlement.topics())
        except StoreError as error:
            raise self._refusal(flow, steps, error) from error
        return [EnqueueResult(step.id, True) for step in steps]

    def _refusal(self, flow: NewFlow, steps: Sequence[NewJob], error: StoreError) -> Exception:
        """Why a flow was not stored: an id that is taken, or the error itself."""
        if not is_conflict(error):
            return error
        # A failed transaction of PostgreSQL answers nothing more: another one reads which it was.
        there = self._taken(steps)
        return next((id_taken(step) for step in steps if step.id in there), flow_taken(flow.id))

    def _taken(self, steps: Sequence[NewJob]) -> set[str]:
        return self._transactions.read(lambda tx: taken(tx, steps))

    def find(self, flow_id: str) -> Flow | None:
        """One flow."""
        rows = self._transactions.read(
            lambda tx: tx.execute(_SQL["flow"], {"id": flow_id}).fetchall()
        )
        return flow_row(rows[0]).flow() if rows else None

    def search(self, statuses: Sequence[FlowStatus], limit: int) -> list[Flow]:
        """Flows in one of these states, or in any; the newest first."""
        return self.page(statuses, limit)[0]

    def page(
        self, statuses: Sequence[FlowStatus], limit: int, below: int | None = None
    ) -> tuple[list[Flow], int | None]:
        """One page of flows, and the place below which the next page begins; None: this was the
        last page.
        """
        values = {
            "statuses": texts([each.value for each in statuses]),
            "below": ABOVE_ALL if below is None else below,
            "limit": limit + 1,
        }
        statement = _SQL["flows_in" if statuses else "flows"]
        rows = self._transactions.read(lambda tx: tx.execute(statement, values).fetchall())
        return flow_page([(row[-1], flow_row(row[:-1]).flow()) for row in rows], limit)

    def joins(self, flow_id: str) -> list[Join]:
        """The joins of a flow, in the order in which they were added."""
        rows = self._transactions.read(
            lambda tx: tx.execute(_SQL["joins"], {"flow_id": flow_id}).fetchall()
        )
        return [
            Join(id=join, flow_id=flow, remaining=remaining, members=bytes(members))
            for join, flow, remaining, members in rows
        ]

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip."""
        return self._write(lambda steps: steps.flows.apply(flow_id, event))

    def sweep(self, flow_id: str) -> bool:
        """Continue a decision for one slice of steps. Returns whether anything is left to do."""
        return self._write(lambda steps: steps.flows.sweep(flow_id))

    def purge(self, flow_id: str) -> None:
        """Let retention delete a flow that has ended, with its steps."""
        self._write(lambda steps: steps.flows.purge(flow_id))

    def prunable(self, limit: int) -> list[Flow]:
        """Flows that have ended and whose retention is over."""
        rows = self._transactions.read(
            lambda tx: tx.execute(_SQL["prunable_flows"], {"limit": limit}).fetchall()
        )
        return [flow_row(row).flow() for row in rows]

    def delete(self, flow: Flow, limit: int) -> bool:
        """Delete some steps of a flow whose retention is over, and finally the flow."""

        def work(tx: PostgresTx) -> bool:
            found, now = tx.execute(_SQL["lock_flow"], {"id": flow.id}), tx.execute(_SQL["now"])
            rows = found.fetchall()
            if not rows or not is_as_read(flow_row(rows[0]), flow, now.fetchall()[0][0]):
                return False
            return purge_flow(tx, flow.id, limit) >= limit

        return self._transactions.stepwise(work, "sweep")

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for a signal, or keep the value for the step that will wait
        for it.
        """
        return self._write(lambda steps: steps.flows.signal(flow_id, name, value))

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned, by id."""
        pages = [ids[n : n + IDS_PER_QUERY] for n in range(0, len(ids), IDS_PER_QUERY)]

        def work(tx: PostgresTx) -> dict[str, bytes | None]:
            asked = [tx.execute(_SQL["results"], {"ids": texts(page)}) for page in pages]
            return {job_id: bytes(result) for each in asked for job_id, result in each.fetchall()}

        return self._transactions.read(work)

    def _write(self, work: Callable[[StepSettlement], T]) -> T:
        """Run one transaction, and wake the jobs that wait for limit keys which it freed."""
        topics: set[Topic] = set()

        def whole(tx: PostgresTx) -> tuple[T, Effects]:
            settlement = StepSettlement(tx)
            result = work(settlement)
            topics.update(settlement.topics())
            return result, settlement.read()

        result, effects = self._transactions.retrying(whole, "desk", topics=topics)
        if effects.freed or effects.long:
            topics.add(Topic.WORK)
            self._transactions.stepwise(lambda tx: _follow(tx, effects), "desk", topics=topics)
        return result


def _follow(tx: PostgresTx, effects: Effects) -> None:
    shorten(tx, effects.long)
    if effects.freed:
        lock_keys(tx, effects.freed)
        wake(tx, effects.freed)
