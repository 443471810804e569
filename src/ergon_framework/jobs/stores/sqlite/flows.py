"""The flows of an SQLite job store: the calls of their port, each one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ergon_framework.core.flow import FlowEvent, FlowStatus
from ergon_framework.jobs.stores.documents import text_of
from ergon_framework.jobs.stores.flow_settlement import is_as_read
from ergon_framework.jobs.stores.pages import ABOVE_ALL, flow_page
from ergon_framework.jobs.stores.sqlite.flow_tables import flow_row, purge_flow
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.jobs.stores.sqlite.transactions import SqliteTransactions
from ergon_framework.jobs.stores.sqlite.transitions import SqliteTransitions
from ergon_framework.ports.flow import Flow, Join, NewFlow, SignalOutcome
from ergon_framework.ports.jobstore import EnqueueResult, NewJob
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.external_transaction import SqliteJoinable, joined

_SQL = load(SQL, "flows.sql")
IDS_PER_QUERY = 10_000


class SqliteFlows:
    """The flows of one job store."""

    def __init__(self, transactions: SqliteTransactions) -> None:
        self._transactions = transactions

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps in one commit, or steps of a flow that is there."""
        self._transactions.write(lambda tx: tx.flows.add(flow, steps), "add", is_work=True)
        return [EnqueueResult(step.id, True) for step in steps]

    def add_in(
        self, connection: SqliteJoinable, flow: NewFlow, steps: Sequence[NewJob]
    ) -> list[EnqueueResult]:
        """The same in the caller's own transaction on the same file, which the caller commits."""
        lock = load(SQL, "jobs.sql")["lock"]
        with joined(connection, self._transactions.path, lock) as cursor:
            tx = SqliteTransitions(cursor, self._transactions.now(), self._transactions.retention)
            tx.flows.add(flow, steps)
            tx.finish()
        return [EnqueueResult(step.id, True) for step in steps]

    def find(self, flow_id: str) -> Flow | None:
        """One flow."""
        row = self._transactions.first(_SQL["flow"], (flow_id,))
        return None if row is None else flow_row(row).flow()

    def search(self, statuses: Sequence[FlowStatus], limit: int) -> list[Flow]:
        """Flows in one of these states, or in any; the newest first."""
        return self.page(statuses, limit)[0]

    def page(
        self, statuses: Sequence[FlowStatus], limit: int, below: int | None = None
    ) -> tuple[list[Flow], int | None]:
        """One page of flows, and the place below which the next page begins; None: this was the
        last page.
        """
        end, most = ABOVE_ALL if below is None else below, limit + 1

        def work(cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
            if not statuses:
                return cursor.execute(_SQL["flows"], (end, most)).fetchall()
            statement = _SQL["flows_in"]
            return [
                row
                for status in statuses
                for row in cursor.execute(statement, (status.value, end, most)).fetchall()
            ]

        rows = self._transactions.read(work)
        return flow_page([(row[-1], flow_row(row[:-1]).flow()) for row in rows], limit)

    def joins(self, flow_id: str) -> list[Join]:
        """The joins of a flow, in the order in which they were added."""
        rows = self._transactions.read(
            lambda cursor: cursor.execute(_SQL["joins"], (flow_id,)).fetchall()
        )
        return [
            Join(id=join, flow_id=flow, remaining=remaining, members=members)
            for join, flow, remaining, members in rows
        ]

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip."""
        return self._transactions.write(lambda tx: tx.flows.apply(flow_id, event), "desk")

    def sweep(self, flow_id: str) -> bool:
        """Continue a decision for one slice of steps. Returns whether anything is left to do."""
        return self._transactions.write(lambda tx: tx.flows.sweep(flow_id), "desk")

    def purge(self, flow_id: str) -> None:
        """Let retention delete a flow that has ended, with its steps."""
        self._transactions.write(lambda tx: tx.flows.purge(flow_id), "desk")

    def prunable(self, limit: int) -> list[Flow]:
        """Flows that have ended and whose retention is over."""
        values = (self._transactions.now(), limit)
        rows = self._transactions.read(
            lambda cursor: cursor.execute(_SQL["prunable_flows"], values).fetchall()
        )
        return [flow_row(row).flow() for row in rows]

    def delete(self, flow: Flow, limit: int) -> bool:
        """Delete some steps of a flow whose retention is over, and finally the flow."""

        def work(tx: SqliteTransitions) -> bool:
            row = tx.cursor.execute(_SQL["flow"], (flow.id,)).fetchone()
            if row is None or not is_as_read(flow_row(row), flow, tx.now):
                return False
            return purge_flow(tx, flow.id, limit) >= limit

        return self._transactions.write(work, "sweep")

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for a signal, or keep the value for the step that will wait
        for it.
        """
        return self._transactions.write(lambda tx: tx.flows.signal(flow_id, name, value), "desk")

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned, by id."""

        def work(cursor: sqlite3.Cursor) -> dict[str, bytes | None]:
            found: dict[str, bytes | None] = {}
            for first in range(0, len(ids), IDS_PER_QUERY):
                some = text_of(ids[first : first + IDS_PER_QUERY])
                found |= dict(cursor.execute(_SQL["results"], (some,)).fetchall())
            return found

        return self._transactions.read(work)
