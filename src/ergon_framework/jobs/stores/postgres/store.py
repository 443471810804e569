"""The PostgreSQL job store: all calls of its ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from ergon_framework.core.claim import (
    DEFAULT_BOUNDS,
    ClaimBounds,
    ClaimRequest,
    QueueLimits,
    checked_changes,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.errors import DuplicateJobError, StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.documents import Reader, earliest, queue_of, text_of
from ergon_framework.jobs.stores.postgres.admin import (
    count_jobs,
    end_outdated,
    erase_jobs,
    forget_idle,
    list_queues,
    named_executors,
    purge_due,
    purge_jobs,
    search_jobs,
    wake_blocked,
)
from ergon_framework.jobs.stores.postgres.claim import PostgresClaimMemory
from ergon_framework.jobs.stores.postgres.exchange import Unconfirmed, WorkerExchange
from ergon_framework.jobs.stores.postgres.flow_tables import (
    StepSettlement,
    do_slice,
    purge_flows,
    settle_steps,
)
from ergon_framework.jobs.stores.postgres.flows import PostgresFlows
from ergon_framework.jobs.stores.postgres.insert import (
    ExternalInsert,
    Insertion,
    has_keys,
    holders_of,
    insert,
    is_same,
    refuse_duplicate_ids,
    taken,
)
from ergon_framework.jobs.stores.postgres.queue_counts import (
    count_by_status,
    look_at_queues,
    queue_names,
)
from ergon_framework.jobs.stores.postgres.records import PostgresJobRecords
from ergon_framework.jobs.stores.postgres.rows import Row, page_of
from ergon_framework.jobs.stores.postgres.settle import (
    SettleBatch,
    cancel_requests,
    request_cancel,
    shorten,
)
from ergon_framework.jobs.stores.postgres.statements import flags, numbers, statements, texts
from ergon_framework.jobs.stores.postgres.transactions import (
    MAX_CONFLICTS,
    PostgresTransactions,
    PostgresTx,
    is_conflict,
    topics_of,
)
from ergon_framework.jobs.stores.transitions import (
    DUE,
    ENDED,
    MAX_WOKEN,
    RUNNING,
    id_taken,
    key_held,
    settle_cancelled,
)
from ergon_framework.jobs.stores.unreadable import (
    Note,
    UnreadableLog,
    argument_problem,
    key_is_held,
    left_out_of,
    unreadable_job,
    was_status,
)
from ergon_framework.ports.jobstore import (
    MAX_CLOCK_SKEW,
    MOST_COUNTED,
    MOST_SAMPLED,
    CancelRequest,
    ClaimResult,
    EnqueueResult,
    Job,
    LeaseRenewal,
    Named,
    NewJob,
    PruneResult,
    Queue,
    Schedule,
    Search,
    Settlement,
    StatusCounts,
    Subscription,
    Topic,
    Unreadable,
    WorkerRecord,
    cancel_request_in,
)
from ergon_framework.storage.conflicts import retry_conflicts
from ergon_framework.storage.postgres.external_transaction import PostgresJoinable
from ergon_framework.storage.postgres.pool import DEFAULT_TIMEOUTS, PostgresTimeouts
from ergon_framework.storage.urls import option_for, shown_url

_ADMIN = statements("admin.sql")
_SCHEDULES = statements("schedules.sql")
_SQL = statements("jobs.sql")
_ACKNOWLEDGED = "An acknowledged job is committed and synced to disk by the PostgreSQL server."


class PostgresJobStore:
    """Jobs in one PostgreSQL database, which any number of hosts may share."""

    durability: str
    """What an acknowledgement means."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS,
        claim_bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.transactions = PostgresTransactions(
            url, clock=clock, read_only=read_only, timeouts=timeouts
        )
        self.shown_url = shown_url(url)
        """The URL that commands in messages contain."""
        self.durability = self.transactions.database.acknowledged("job", _ACKNOWLEDGED)
        self._claim_bounds = claim_bounds
        self._memory = PostgresClaimMemory()
        self._unconfirmed: Unconfirmed = set()
        self._external_insert = ExternalInsert(self.transactions)
        self._reader = Reader()
        self._unreadable_log = UnreadableLog()
        self._swept = ""  # the last limit key that a sweep looked at

    @property
    def records(self) -> PostgresJobRecords:
        """All records of the store, for copies into another store or from one."""
        return PostgresJobRecords(self.transactions, self)

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that the store ends by itself."""
        return self.transactions.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.transactions.retention = retention

    @property
    def flows(self) -> PostgresFlows:
        """The flows of the store."""
        return PostgresFlows(self.transactions, self._external_insert)

    @property
    def name(self) -> str:
        """The name of the database shown to users."""
        return self.transactions.name

    def now(self) -> float:
        """The server's clock, or the one that was given."""
        return self.transactions.now()

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self.transactions.subscribe(topic)

    def announce(self) -> None:
        """Wake the workers. For callers that added jobs in a transaction of their own."""
        self.transactions.announce()

    def close(self) -> None:
        """Close everything. May be called twice."""
        self.transactions.close()

    @property
    def is_synced(self) -> bool:
        """Whether the server's own settings keep what it acknowledges."""
        return self.transactions.database.is_safe

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all jobs or none. Raises DuplicateJobError."""
        if not jobs:
            return []
        try:
            return self._add(jobs)
        except StoreUnavailableError as error:
            # Nothing was sent, or the server refused: then there is nothing to find out.
            if not error.details.get("is_lost"):
                raise
            return self._add_again(jobs, error)

    def _add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return self._add_keyed(jobs) if has_keys(jobs) else self._add_plain(jobs)

    def _add_again(
        self, jobs: Sequence[NewJob], error: StoreUnavailableError
    ) -> list[EnqueueResult]:
        """Add jobs whose first answer was lost. Their ids tell whether they are there already."""
        try:
            try:
                added = self._add(jobs)
            except DuplicateJobError:
                # The first attempt may have succeeded: jobs of the same id and content are ours.
                there = {job.id: job for job in self.search(Search(ids=tuple(j.id for j in jobs)))}
                if not any(is_same(job, there.get(job.id)) for job in jobs):
                    raise
                return [
                    EnqueueResult(
                        *(job.id, True) if job.id in there else (self._holder_of(job), False)
                    )
                    for job in jobs
                ]
        except StoreUnavailableError:
            raise StoreUnavailableError(
                f"nobody knows whether these jobs were stored: {error}",
                remedy="look for their ids, which are in the details, before you add them again",
                details=error.details | {"ids": [job.id for job in jobs]},
            ) from error
        own = {job.id for job in jobs}
        return [
            # The first attempt may have stored a job that the second one met as the holder of its
            # own key.
            EnqueueResult(each.id, each.is_new or each.id in own, each.replaced)
            for each in added
        ]

    def _holder_of(self, job: NewJob) -> str:
        return self.holder(job.unique_key or "") or job.id

    def add_in(self, connection: PostgresJoinable, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Add jobs in the caller's own transaction on the same database, which the caller commits.

        ``connection`` is one of psycopg, or a connection or session of SQLAlchemy with psycopg
        under it. The jobs are there when it commits and not before, or never; workers are woken by
        that commit.
        """
        if not jobs:
            return []
        self.transactions.refuse_to_write()
        # By unique key, its holder as seen from outside of the caller's transaction.
        unseen: dict[str, str] = {}

        def attempt() -> list[EnqueueResult]:
            try:
                return self._external_insert.add(connection, jobs, unseen)
            except StoreError as error:
                # A conflict with a row that this transaction cannot see, as it is older: who holds
                # the keys is read outside of it, and the second attempt knows.
                if is_conflict(error):
                    self._refuse_taken(jobs, self.transactions.read(lambda tx: taken(tx, jobs)))
                    unseen.clear()
                    unseen.update(self._holders_of(jobs))
                raise

        keyed = next((job for job in jobs if job.unique_key is not None), None)
        give_up = None if keyed is None else lambda: key_held(keyed)
        most = MAX_CONFLICTS + 1
        return retry_conflicts(attempt, max_attempts=most, give_up=give_up, is_conflict=is_conflict)

    def _holders_of(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """By unique key, as it is outside of the caller's transaction."""
        keys = {job.unique_key for job in jobs if job.unique_key is not None}
        return {key: holder for key in keys if (holder := self.holder(key)) is not None}

    def _add_plain(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        # Before anything is sent: the server would only name one of the two.
        refuse_duplicate_ids(jobs)

        def send(tx: PostgresTx) -> Callable[[], None]:
            insert(tx, jobs)
            return lambda: None

        # One statement is a transaction by itself: no round trip for BEGIN and COMMIT.
        try:
            self.transactions.pipelined(send, "add", topics={Topic.WORK}, is_single=True)
        except StoreError as error:
            if not is_conflict(error):
                raise
            self._refuse_taken(jobs, self.transactions.read(lambda tx: taken(tx, jobs)))
            raise
        return [EnqueueResult(job.id, True) for job in jobs]

    def _refuse_taken(self, jobs: Sequence[NewJob], there: set[str]) -> None:
        for job in jobs:
            if job.id in there:
                raise id_taken(job) from None

    def _add_keyed(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        topics = {Topic.WORK}

        def work(tx: PostgresTx) -> list[EnqueueResult]:
            adding = Insertion(tx, jobs)
            added = adding.all()
            topics.update(topics_of(is_work=True, is_done=adding.is_done))
            return added

        return self.transactions.retrying(work, "add", topics=topics)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Apply what happened, then claim; in one commit, unless limits have to be looked at."""
        if not settlements and request is None:
            return [], ClaimResult([])
        exchange = WorkerExchange(
            self.transactions, settlements, self._unconfirmed, self._memory, self._claim_bounds
        )
        applied, claimed = exchange.run(request)
        if not all(applied):
            applied = settle_cancelled(
                settlements,
                applied,
                self.cancel_requests,
                lambda again: self.settle_and_claim(again, None)[0],
                self.retention,
            )
        return applied, claimed

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Record that a running job is to be cancelled. False: this claim of it no longer runs."""

        def send(tx: PostgresTx) -> Callable[[], bool]:
            found = request_cancel(tx, job, request)
            return lambda: bool(found.fetchall())

        return self.transactions.pipelined(send, "desk", topics={Topic.CANCEL})

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        """Which of these claims are to be cancelled, by job id."""
        if not claims:
            return {}
        rows = self.transactions.read(lambda tx: cancel_requests(tx, claims).fetchall())
        found = ((job_id, cancel_request_in(note)) for job_id, note in rows)
        return {job_id: request for job_id, request in found if request is not None}

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """Renew leases and charge attempts. False for each job that this holder has lost."""
        if not holds:
            return []
        values = {
            "seqs": numbers([hold.key for hold in holds]),
            "ids": texts([hold.id for hold in holds]),
            "fences": numbers([hold.fence for hold in holds]),
            "charges": flags([hold.is_charged for hold in holds]),
            "lease": lease,
        }

        def send(tx: PostgresTx) -> Callable[[], set[tuple[int, str, int]]]:
            cursor = tx.execute(_SQL["renew"], values)
            return lambda: {(seq, job_id, fence) for seq, job_id, fence in cursor.fetchall()}

        kept = self.transactions.pipelined(send, "renew")
        return [(hold.key, hold.id, hold.fence) in kept for hold in holds]

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Shorten leases that end later than a renewal at this moment would make them end."""
        values = {
            "workers": texts(leases),
            "leases": numbers(leases.values()),
            "others": others,
            "least": min((*leases.values(), others)),
        }
        if not self.transactions.read(lambda tx: tx.execute(_SQL["any_later"], values).fetchall()):
            return 0
        return self.transactions.stepwise(
            lambda tx: tx.execute(_SQL["shorten"], values).rowcount, "renew"
        )

    def shorten_waits(self) -> int:
        """Restore the decided wait of jobs that went back to their queue, after the clock was set
        back.
        """
        values = {"skew": MAX_CLOCK_SKEW}
        asked = _SQL["any_wait_from_later"]
        if not self.transactions.read(lambda tx: tx.execute(asked, values).fetchall()):
            return 0
        return self.transactions.stepwise(
            lambda tx: tx.execute(_SQL["shorten_waits"], values).rowcount,
            "renew",
            topics={Topic.WORK},
        )

    def expired_leases(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        return self.transactions.readable(_SQL["overdue"], {"limit": limit})

    def find(self, job_id: str) -> Job | None:
        """One job."""
        page = self.transactions.read(lambda tx: page_of(tx.execute(_SQL["find"], {"id": job_id})))
        if page.unreadable:
            raise unreadable_job(job_id, page.unreadable[0].problem, option_for(self))
        return page.jobs[0] if page.jobs else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        found = self.transactions.read(lambda tx: holders_of(tx, {unique_key})[0])
        return found[unique_key][1] if found else None

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return search_jobs(self.transactions.read, search, limit, self._unreadable_log)

    def count(self, search: Search) -> int:
        """How many jobs match."""
        return self.transactions.read(lambda tx: count_jobs(tx, search))

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""
        values = {"limit": limit}
        return self.transactions.read(
            lambda tx: page_of(tx.execute(_SQL["aside"], values))
        ).unreadable

    def left_out(self) -> Iterator[Unreadable]:
        """Rows that a search skips as unreadable although no worker has set them aside."""
        return left_out_of(
            lambda log: search_jobs(self.transactions.read, Search(), None, log), self.unreadable()
        )

    def restore_unreadable(self, key: Any) -> bool:
        """Read an unreadable row again, and put the job back where it was."""
        asked: list[str] = []

        def work(tx: PostgresTx) -> bool:
            steps = StepSettlement(tx)
            # Flows first, then rows, as everywhere: two transactions never wait for each other.
            steps.lock_flows([key])
            found = page_of(tx.execute(_SQL["lock_aside"], {"seq": key})).unreadable
            if not found:
                return False
            status = was_status(Note(found[0].status))
            stage = RUNNING if status is JobStatus.ACTIVE else ENDED if status.is_final else DUE
            values = {"seq": key, "stage": stage, "status": status.value}
            asked.append(found[0].id)
            tx.execute(_SQL["put_back"], values)
            # Read again as it would be claimed, in the same transaction: an error undoes that it
            # was put back.
            page = page_of(tx.execute(_SQL["by_seq"], {"seq": key}))
            problem = (
                page.unreadable[0].problem if page.unreadable else argument_problem(page.jobs[0])
            )
            if problem is not None:
                raise unreadable_job(found[0].id, problem, option_for(self))
            steps.release(key)
            steps.finish()
            return True

        try:
            return self.transactions.stepwise(work, "desk", topics={Topic.WORK})
        except StoreError as error:
            if asked and is_conflict(error):
                raise key_is_held(asked[-1]) from error
            raise

    def discard_unreadable(self, key: Any) -> bool:
        """Delete an unreadable row for good."""
        topics: set[Topic] = set()

        def work(tx: PostgresTx) -> bool:
            steps = StepSettlement(tx)
            steps.lock_flows([key])
            found = page_of(tx.execute(_SQL["lock_aside"], {"seq": key})).unreadable
            if not found:
                return False
            if not was_status(Note(found[0].status)).is_final:
                steps.lose(key)
            is_gone = tx.execute(_SQL["discard"], {"seq": key}).rowcount == 1
            steps.finish()
            topics.update(steps.topics())
            return is_gone

        return self.transactions.stepwise(work, "desk", topics=topics)

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step of a flow, and add another in its place, in one commit."""

        def work(tx: PostgresTx) -> bool:
            batch = SettleBatch(tx, [settlement])
            if batch.read() != [True]:
                return False
            shorten(tx, batch.effects.long)
            Insertion(tx, [job]).all()
            return True

        return self.transactions.retrying(work, "desk", topics={Topic.WORK, Topic.DONE})

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not changed since they were read."""
        return self.transactions.stepwise(lambda tx: purge_jobs(tx, jobs), "desk") if jobs else 0

    def erase(self, jobs: Sequence[Job]) -> int:
        """Erase the content of final jobs that have not changed since they were read."""
        if not jobs:
            return 0
        now = self.now()
        return self.transactions.stepwise(lambda tx: erase_jobs(tx, jobs, now), "desk")

    def prunable(self, limit: int) -> list[Job]:
        """Ended jobs whose retention is over and that are not steps of flows."""
        return self.transactions.readable(_ADMIN["prunable"], {"limit": limit})

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        """Delete jobs whose retention is over, end expired jobs, and forget dead workers.

        Also makes jobs due again that wait for a limit key which is free.
        """
        # In several short commits: claims of all workers wait for rows that a long one holds.
        purged = 0
        if purges:
            purged = self.transactions.stepwise(lambda tx: purge_due(tx, limit), "sweep")
        if purges and purged < limit:
            purged += self.transactions.stepwise(
                lambda tx: purge_flows(tx, limit - purged), "sweep"
            )
        flows = do_slice(self.transactions, "sweep")
        outdated = self.transactions.stepwise(lambda tx: end_outdated(tx, limit - purged), "sweep")
        freed = outdated.freed + flows.freed
        if outdated.steps:
            freed += settle_steps(self.transactions, outdated.steps, "sweep")[1].freed
        # Goes on where the last sweep ended, so that each key has its turn.
        is_woken, self._swept = self.transactions.stepwise(
            lambda tx: wake_blocked(tx, freed, self._swept, limit), "sweep"
        )
        workers = self.transactions.stepwise(
            lambda tx: forget_idle(tx, limit), "sweep", is_synced=False
        )
        self.transactions.notify(topics_of(is_done=outdated.number > 0, is_work=is_woken))
        return PruneResult(purged, outdated.number, workers, purged + outdated.number >= limit)

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue with jobs or settings, by name."""
        # One snapshot: a job that moves between two counts would be counted twice.
        return self.transactions.read(lambda tx: list_queues(tx, self.now()), is_one=True)

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        """The next queues that have jobs or settings, by name."""
        return self.transactions.read(
            lambda tx: queue_names(tx, prefix=prefix, after=after, limit=limit, is_due=is_due)
        )

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        """The given queues, in this order. Each state is counted up to ``most`` jobs."""
        now = self.now()
        return self.transactions.read(
            lambda tx: look_at_queues(tx, names, now, most=most, sample=sample), is_one=True
        )

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        """The jobs of the whole store by status, each counted up to ``most`` jobs."""
        return self.transactions.read(lambda tx: count_by_status(tx, most=most), is_one=True)

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change some settings of a queue; the answer has no counts."""
        checked = checked_changes(changes)

        def work(tx: PostgresTx) -> Queue:
            found: list[Row] = []
            while not found:  # another client may remove the row before it is locked
                # A row to lock, also for a queue without settings: else two changes at once would
                # both begin from none.
                tx.execute(_ADMIN["touch_queue"], {"name": name})
                found = tx.execute(_ADMIN["queue"], {"name": name}).fetchall()
            [[*before, now]] = found
            old = QueueLimits(*before)
            settings = old.changed(checked, now)
            if settings.is_plain:
                tx.execute(_ADMIN["unset_queue"], {"name": name})
            else:
                tx.execute(_ADMIN["set_queue"], {"name": name, **asdict(settings)})
            if settings.key_rate is None and old.key_rate is not None:
                tx.execute(_ADMIN["drop_keys"], {"name": name})
            if settings.of_key(0.0) != old.of_key(0.0):
                wake_blocked(tx, Counter(), "", MAX_WOKEN)
            return queue_of(name, settings)

        return self.transactions.stepwise(work, "desk", topics={Topic.WORK})

    def pinned_queues(self) -> dict[str, str]:
        """The versions that queues are pinned to."""
        return self.transactions.read(
            lambda tx: dict(tx.execute(_ADMIN["pinned_queues"]).fetchall())
        )

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        """When jobs that wait for a token of this limit key are due; None if none waits."""
        values = {"queue": queue, "limit_key": limit_key}
        found = self.transactions.read(
            lambda tx: tx.execute(_ADMIN["key_wakes_at"], values).fetchall()
        )
        return found[0][0] if found else None

    # ---- workers --------------------------------------------------------------------------------

    def heartbeat(self, record: WorkerRecord) -> None:
        """Store a worker's heartbeat record. A record with the state ``gone`` removes it."""

        def work(tx: PostgresTx) -> None:
            if record.state == "gone":
                tx.execute(_ADMIN["gone"], {"id": record.id})
            else:
                tx.execute(_ADMIN["tell"], {"id": record.id, "record": text_of(record)})
                names = ["", *record.executors, *record.serves]
                tx.execute(_ADMIN["tell_executors"], {"names": texts(names)})

        self.transactions.stepwise(work, "desk", is_synced=False)

    def check_tables(self) -> None:
        """Raise ``StoreError`` unless the database has all tables of jobs."""
        self.transactions.check_tables()

    def workers(self) -> list[WorkerRecord]:
        """The workers with a heartbeat record, by id."""
        return [each for each in self._worker_records() if not each.has_ended]

    def ended_workers(self) -> list[WorkerRecord]:
        """The final records of workers that have ended."""
        return [each for each in self._worker_records() if each.has_ended]

    def _worker_records(self) -> list[WorkerRecord]:
        return self._reader.workers(
            self.transactions.read(lambda tx: tx.execute(_ADMIN["workers"]).fetchall())
        )

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        return self.transactions.read(named_executors, is_one=True)

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        values = {"executor": executor, "due_before": due_before, "limit": limit}
        return self.transactions.readable(_ADMIN["waiting_for"], values)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        rows = self.transactions.read(lambda tx: tx.execute(_SCHEDULES["all"]).fetchall())
        return self._reader.schedules(rows)

    def next_schedules(self, limit: int) -> list[Schedule]:
        """Schedules that fire next, the earliest first. Paused schedules, and those without another
        fire, are left out.
        """
        values = {"limit": limit}
        rows = self.transactions.read(lambda tx: tx.execute(_SCHEDULES["next"], values).fetchall())
        found = self._reader.schedules(rows)
        # Rows that cannot be read must not stand before the others for ever.
        return found if len(found) == len(rows) else earliest(self.schedules(), limit)

    def put_schedule(self, schedule: Schedule) -> None:
        """Store a schedule; nothing of an earlier definition is kept."""
        values = msgspec.structs.asdict(schedule)
        self.transactions.stepwise(lambda tx: tx.execute(_SCHEDULES["put"], values), "desk")

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed."""
        return self.transactions.stepwise(
            lambda tx: tx.execute(_SCHEDULES["drop"], {"name": name}).rowcount == 1, "desk"
        )

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Advance ``next_at`` and add the jobs, in one commit, if ``next_at`` still is
        ``expected``.

        A job whose id or unique key is taken is skipped.
        """
        topics: set[Topic] = set()

        def work(tx: PostgresTx) -> bool:
            values = {"name": name, "expected": expected, "next_at": next_at}
            if tx.execute(_SCHEDULES["advance"], values).rowcount != 1:
                return False
            adding = Insertion(tx, jobs)
            is_work = adding.possible() > 0
            topics.update(topics_of(is_done=adding.is_done, is_work=is_work))
            return True

        return self.transactions.retrying(work, "fire", topics=topics)
