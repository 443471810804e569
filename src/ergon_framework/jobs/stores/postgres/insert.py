"""Inserting jobs: in one statement, within one transaction, or in a transaction of the caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from ergon_framework.core.job import JobStatus
from ergon_framework.core.unique import OnDuplicate, extended, is_held
from ergon_framework.errors import DuplicateJobError, StoreError
from ergon_framework.jobs.stores.documents import is_special, states_from
from ergon_framework.jobs.stores.postgres.flow_tables import StepSettlement
from ergon_framework.jobs.stores.postgres.rows import Row
from ergon_framework.jobs.stores.postgres.settle import SettleBatch, lock_keys, wake
from ergon_framework.jobs.stores.postgres.statements import (
    indexed,
    key_values,
    label_values,
    numbers,
    plain_values,
    special_values,
    statements,
    texts,
)
from ergon_framework.jobs.stores.postgres.transactions import (
    PostgresTransactions,
    PostgresTx,
    topics_of,
)
from ergon_framework.jobs.stores.transitions import (
    cancel_replaced,
    check_extension,
    due_at,
    id_taken,
    key_held,
    key_unseen,
    on_duplicate,
)
from ergon_framework.ports.jobstore import EnqueueResult, Job, NewJob
from ergon_framework.storage.postgres.external_transaction import PostgresJoinable, joined
from ergon_framework.storage.postgres.pipeline import Texts

_SQL = statements("jobs.sql")
_FLOWS = statements("flows.sql")
_CHANGING = (OnDuplicate.REPLACE, OnDuplicate.EXTEND)
_INSERT_INDEXED = indexed(_SQL["insert"], _SQL["then_index"])


def has_keys(jobs: Sequence[NewJob]) -> bool:
    """Whether others have to be looked at before these can be added."""
    return any(job.unique_key is not None for job in jobs)


def insert(tx: PostgresTx, jobs: Sequence[NewJob]) -> None:
    """Add them all, whatever their keys; the server refuses all when one is not unique."""
    if not any(map(is_special, jobs)):
        tx.execute(_SQL["insert_plain"], plain_values(jobs))
        return
    values = plain_values(jobs) | special_values(jobs)
    labels = label_values(jobs)
    if labels is None:
        tx.execute(_SQL["insert"], values)
    else:
        tx.execute(_INSERT_INDEXED, values | labels)


def refuse_duplicate_ids(jobs: Sequence[NewJob]) -> None:
    """Refuse two jobs of one id in one batch."""
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise id_taken(job)
        seen.add(job.id)


def is_same(job: NewJob, there: Job | None) -> bool:
    """Whether this is the job that was to be added."""
    return there is not None and all(
        getattr(job, name) == getattr(there, name)
        for name in ("handler", "queue", "executor", "args", "kwargs", "unique_key")
    )


def taken(tx: PostgresTx, jobs: Sequence[NewJob]) -> set[str]:
    """Which of their ids are there already."""
    values = {"ids": texts([job.id for job in jobs])}
    return {row[0] for row in tx.execute(_SQL["taken_ids"], values).fetchall()}


class Insertion:
    """Adds jobs that may meet others, in the order given, within one transaction.

    ``is_external``: the transaction is the caller's, and may stay open for long. Then it takes no
    lock that claims wait for, and jobs blocked by a replaced one are woken by the next prune.
    ``unseen``: by unique key, holders that were found outside, and which it may not be able to see.
    """

    def __init__(
        self,
        tx: PostgresTx,
        jobs: Sequence[NewJob],
        *,
        is_external: bool = False,
        unseen: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._tx = tx
        self._is_external = is_external
        self._unseen = unseen
        self._jobs = jobs
        self._new_jobs: dict[str, NewJob] = {}  # by id; not written yet
        self._takers: dict[str, int] = {}  # who was seen with a key, by its number
        self._freed: Counter[str] = Counter()
        self._taken = taken(tx, jobs)
        keys = {job.unique_key for job in jobs if job.unique_key is not None}
        wanted = keys & {job.unique_key for job in jobs if job.on_duplicate in _CHANGING}
        # Only what may be changed is locked: the caller's transaction may take its time.
        self._holders: dict[str, Row] = {}
        self._look_for(keys - wanted)
        self._look_for(wanted, is_locked=True)
        self.is_done = False
        """Whether a job was cancelled for another one."""

    def all(self) -> list[EnqueueResult]:
        """Add all of them; raises DuplicateJobError, and then the caller rolls back."""
        found = [self._add(job) for job in self._jobs]
        self._finish()
        return found

    def possible(self) -> int:
        """Add those that can be added, and leave out the others; how many there were."""
        added = 0
        for job in self._jobs:
            with suppress(DuplicateJobError):
                added += self._add(job).is_new
        self._finish()
        return added

    def _look_for(self, keys: Collection[str], *, is_locked: bool = False) -> None:
        """Read how the holders of these keys stand, and what time it is."""
        if not keys:
            return
        if is_locked:
            self._lock_flows(texts(keys))
        elif self._is_external:
            # A job that holds its key only while it waits must not begin before the caller commits:
            # it could miss what the caller wrote, and nobody else would come for that.
            self._tx.execute(_SQL["lock_waiting_takers"], {"keys": texts(keys)})
        found = holders_of(self._tx, keys, is_locked=is_locked)
        self._holders |= found[0]
        self._takers |= found[1]

    def _lock_flows(self, keys: Texts) -> None:
        """Lock the flows of steps that hold keys: flows come before jobs.

        The user of an external transaction may have no right to, and needs none for other jobs.
        """
        asked, values = _FLOWS["step_holders"], {"keys": keys}
        if not self._is_external or self._tx.execute(asked, values).fetchall():
            self._tx.execute(_FLOWS["lock_flows_of_holders"], values)

    def _add(self, job: NewJob) -> EnqueueResult:
        if job.unique_key is None or job.unique_key not in self._holders:
            if job.unique_key is not None and job.unique_key in self._unseen:
                return _beside(job, self._unseen[job.unique_key])
            self._put(job)
            return EnqueueResult(job.id, True)
        holder, status = self._holders[job.unique_key][1:3]
        decided = on_duplicate(job, holder, JobStatus(status))
        if decided is OnDuplicate.EXTEND:
            self._extend(job.unique_key, job)
        if decided is not OnDuplicate.REPLACE:
            return EnqueueResult(holder, False)
        if job.id in self._taken:
            raise id_taken(job)
        self._replace(job.unique_key)
        self._put(job)
        return EnqueueResult(job.id, True, holder)

    def _put(self, job: NewJob) -> None:
        if job.id in self._taken:
            raise id_taken(job)
        self._taken.add(job.id)
        self._new_jobs[job.id] = job
        # Later jobs of this batch meet it as a holder, though no row is written yet.
        if job.unique_key is not None:
            self._holders[job.unique_key] = (None, job.id, JobStatus.PENDING.value)

    def _replace(self, key: str) -> None:
        """Cancel the holder."""
        *standing, now = self._written(key)
        del self._holders[key]
        cancelled = [cancel_replaced(tuple(standing), now, self._tx.retention)]
        batch = SettleBatch(self._tx, cancelled)
        if batch.read() == [True]:
            self._freed += batch.effects.freed
        else:  # it is a step, whose flow was locked before it
            steps = StepSettlement(self._tx)
            steps.apply(cancelled)
            steps.finish()
            self._freed += steps.read().freed
        self.is_done = True

    def _extend(self, key: str, job: NewJob) -> None:
        """Let the holder wait until the due time of another, with its arguments."""
        seq, *_, now = self._written(key)
        [[run_at, holder, handler]] = self._tx.execute(_SQL["due_at"], {"seq": seq}).fetchall()
        due = extended(run_at, due_at(job, now))
        check_extension(job, holder, handler, due)
        values = {
            "seq": seq,
            "run_at": due,
            "at": now,
            "expires_at": job.expires_at,
            "args": job.args,
            "kwargs": job.kwargs,
        }
        [[limit_key]] = self._tx.execute(_SQL["extend"], values).fetchall()
        if limit_key is not None:
            self._freed[limit_key] += 1  # others may go that waited for it

    def _written(self, key: str) -> Row:
        """How the holder stands; one of this very batch has to be written first."""
        if self._holders[key][0] is None:
            self._write()
            self._look_for({key}, is_locked=True)
        return self._holders[key]

    def _write(self) -> None:
        if not self._new_jobs:
            return
        new_jobs = list(self._new_jobs.values())
        insert(self._tx, new_jobs)
        self._new_jobs = {}
        ruled = [job for job in new_jobs if job.unique is not None]
        if ruled:
            self._take_keys([job for job in ruled if job.unique_key in self._takers])
            self._take_free_keys([job for job in ruled if job.unique_key not in self._takers])

    def _take_keys(self, jobs: Sequence[NewJob]) -> None:
        """Take keys over from the jobs that were seen with them."""
        taking = key_values(jobs)
        if taking is None:
            return
        values = taking | {"seen": numbers(self._takers.values())}
        done = {row[0] for row in self._tx.execute(_SQL["take_keys"], values).fetchall()}
        self._take_free_keys([job for job in jobs if job.unique_key not in done])

    def _take_free_keys(self, jobs: Sequence[NewJob]) -> None:
        """Take keys; the server refuses all when somebody took one meanwhile, to begin anew."""
        taking = key_values(jobs)
        if taking is not None:
            self._tx.execute(_SQL["take_free_keys"], taking)

    def _finish(self) -> None:
        self._write()
        # Last of all, so that no cycle of locks can form: transactions that wait for a limit key
        # hold no lock that this one still needs.
        if self._freed and not self._is_external:
            lock_keys(self._tx, self._freed)
            wake(self._tx, self._freed)


def holders_of(
    tx: PostgresTx, keys: Collection[str], *, is_locked: bool = False
) -> tuple[dict[str, Row], dict[str, int]]:
    """By unique key: how the holder stands and what time it is, and who took it by a rule."""
    values = {"keys": texts(keys)}
    rows = tx.execute(_SQL["lock_holders" if is_locked else "key_holders"], values).fetchall()
    holders: dict[str, Row] = {row[0]: row[1:] for row in rows}
    asked = "lock_takers" if is_locked else "key_takers"
    takers: dict[str, int] = {}
    for key, *standing, states, until in tx.execute(_SQL[asked], values).fetchall():
        takers[key] = standing[0]
        status, now = JobStatus(standing[2]), standing[-1]
        if key not in holders and is_held(status, states_from(states), until, now):
            holders[key] = tuple(standing)
    return holders, takers


def _beside(job: NewJob, holder: str) -> EnqueueResult:
    """What becomes of a job whose unique key one holds that the transaction cannot see."""
    if job.on_duplicate is OnDuplicate.EXISTING:
        return EnqueueResult(holder, False)
    raise (
        key_held(job, holder) if job.on_duplicate is OnDuplicate.REJECT else key_unseen(job, holder)
    )


_JOINING = statements("external_transaction.sql")
_SEEING = frozenset({"read committed", "read uncommitted"})
"""Each statement sees what was committed before it."""


class ExternalInsert:
    """Where the store's tables are, so that another connection can be told whether it has them."""

    def __init__(self, transactions: PostgresTransactions) -> None:
        self._transactions = transactions
        self._home: Row | None = None

    @contextmanager
    def joined(self, connection: PostgresJoinable) -> Iterator[tuple[PostgresTx, str]]:
        """The caller's transaction, and how isolated it is from others.

        The caller's connection may lead to another database with the same tables: what is added
        there would be acknowledged, and no worker of this store would ever see it.
        """
        *home, namespace = self._found()
        with joined(connection, self._transactions.name) as driver:
            tx = self._transactions.tx(driver)
            with _looking_in(tx, namespace) as isolation:
                [found] = tx.execute(_JOINING["home"]).fetchall()
                if list(found[:-1]) != home:
                    raise StoreError(
                        f"the connection is not one to {self._transactions.name}",
                        remedy="connect to that very database, or leave the connection out",
                    )
                yield tx, isolation

    def add(
        self, connection: PostgresJoinable, jobs: Sequence[NewJob], unseen: Mapping[str, str]
    ) -> list[EnqueueResult]:
        """Add jobs in the caller's transaction.

        ``unseen``: the holders of keys, for a transaction that sees others as they were when it
        began. Any other looks for itself.
        """
        with self.joined(connection) as (tx, isolation):
            hidden = {} if isolation in _SEEING else unseen
            adding = Insertion(tx, jobs, is_external=True, unseen=hidden)
            added = adding.all()
            topics = topics_of(is_work=True, is_done=adding.is_done)
            self._transactions.notify_on_commit(tx, topics)
        return added

    def _found(self) -> Row:
        if self._home is None:
            [self._home] = self._transactions.read(
                lambda tx: tx.execute(_JOINING["home"]).fetchall()
            )
        return self._home


@contextmanager
def _looking_in(tx: PostgresTx, namespace: str) -> Iterator[str]:
    """Find our tables for a while, wherever the caller looks for its own; how isolated it is.

    After an error the caller's savepoint puts it back.
    """
    [[before, isolation]] = tx.execute(_JOINING["session"]).fetchall()
    tx.execute(_JOINING["set_path"], {"path": f'"{namespace}"'})
    yield isolation
    tx.execute(_JOINING["set_path"], {"path": before})
