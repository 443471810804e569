"""The PostgreSQL job store: what clients and workers need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ergon_framework.errors import DuplicateJobError, StoreError, StoreUnavailableError
from ergon_framework.jobs.stores.postgres.adding import (
    Adding,
    has_keys,
    insert,
    is_same,
    refuse_twins,
    taken,
)
from ergon_framework.jobs.stores.postgres.exchanging import Exchange, Unsure
from ergon_framework.jobs.stores.postgres.ground import CONFLICTS, topics_of
from ergon_framework.jobs.stores.postgres.joining import Joining
from ergon_framework.jobs.stores.postgres.moving import PostgresMoving
from ergon_framework.jobs.stores.postgres.rows import page_of
from ergon_framework.jobs.stores.postgres.statements import flags, numbers, statements, texts
from ergon_framework.jobs.stores.postgres.taking import Memory
from ergon_framework.jobs.stores.postgres.words import Words, is_conflict
from ergon_framework.jobs.stores.refusals import id_taken, key_held
from ergon_framework.jobs.stores.unreadable import unreadable_job
from ergon_framework.ports.jobstore import (
    Added,
    Ask,
    Claimed,
    Hold,
    Job,
    NewJob,
    Search,
    Settlement,
    Topic,
)
from ergon_framework.storage.postgres.external_transaction import Joinable

_SQL = statements("jobs.sql")
_ACKNOWLEDGED = "An acknowledged job is committed and synced to disk by the PostgreSQL server."


class PostgresJobStore(PostgresMoving):
    """Jobs in one PostgreSQL database, which any number of hosts may share."""

    durability: str
    """What an acknowledgement means."""

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, read_only: bool = False
    ) -> None:
        super().__init__(url, clock=clock, read_only=read_only)
        self.durability = self._database.acknowledged("job", _ACKNOWLEDGED)
        self._memory = Memory()
        self._unsure: Unsure = set()
        self._joining = Joining(self)

    @property
    def is_synced(self) -> bool:
        """Whether the server's own settings keep what it acknowledges."""
        return self._database.is_safe

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store all of them or none; raises DuplicateJobError."""
        if not jobs:
            return []
        try:
            return self._add(jobs)
        except StoreUnavailableError as error:
            if not error.details.get("is_lost"):
                raise
            return self._add_again(jobs, error)

    def _add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return self._add_keyed(jobs) if has_keys(jobs) else self._add_plain(jobs)

    def _add_again(self, jobs: Sequence[NewJob], error: StoreUnavailableError) -> list[Added]:
        """Nobody knows whether they are there. Their ids tell: no job is added twice."""
        try:
            try:
                added = self._add(jobs)
            except DuplicateJobError:
                there = {job.id: job for job in self.search(Search(ids=tuple(j.id for j in jobs)))}
                if not any(is_same(job, there.get(job.id)) for job in jobs):
                    raise
                return [
                    Added(*(job.id, True) if job.id in there else (self._holder_of(job), False))
                    for job in jobs
                ]
        except StoreUnavailableError:
            raise StoreUnavailableError(
                f"nobody knows whether these jobs were stored: {error}",
                remedy="look for their ids, which are in the details, before you add them again",
                details=error.details | {"ids": [job.id for job in jobs]},
            ) from error
        own = {job.id for job in jobs}
        return [Added(each.id, each.is_new or each.id in own, each.replaced) for each in added]

    def _holder_of(self, job: NewJob) -> str:
        return self.holder(job.unique_key or "") or job.id

    def add_in(self, connection: Joinable, jobs: Sequence[NewJob]) -> list[Added]:
        """Add jobs in the caller's own transaction on the same database, which the caller commits.

        ``connection`` is one of psycopg, or a connection or session of SQLAlchemy with psycopg
        under it. The jobs are there when it commits and not before, or never; workers are woken by
        that commit.
        """
        if not jobs:
            return []
        self.refuse_to_write()
        unseen: dict[str, str] = {}
        for _ in range(CONFLICTS):
            try:
                return self._joining.add(connection, jobs, unseen)
            except StoreError as error:
                if not is_conflict(error):
                    raise
                self._refuse_taken(jobs, self.look(lambda words: taken(words, jobs)))
            unseen = self._holders_of(jobs)
        return self._add_in_at_last(connection, jobs, unseen)

    def _holders_of(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """By unique key, as it is outside of the caller's transaction."""
        keys = {job.unique_key for job in jobs if job.unique_key is not None}
        return {key: holder for key in keys if (holder := self.holder(key)) is not None}

    def _add_in_at_last(
        self, connection: Joinable, jobs: Sequence[NewJob], unseen: Mapping[str, str]
    ) -> list[Added]:
        try:
            return self._joining.add(connection, jobs, unseen)
        except StoreError as error:
            keyed = next((job for job in jobs if job.unique_key is not None), None)
            if keyed is None or not is_conflict(error):
                raise
            raise key_held(keyed) from None

    def _add_plain(self, jobs: Sequence[NewJob]) -> list[Added]:
        refuse_twins(jobs)

        def send(words: Words) -> Callable[[], None]:
            insert(words, jobs)
            return lambda: None

        try:
            self.pipe(send, "add", topics={Topic.WORK}, is_single=True)
        except StoreError as error:
            if not is_conflict(error):
                raise
            self._refuse_taken(jobs, self.look(lambda words: taken(words, jobs)))
            raise
        return [Added(job.id, True) for job in jobs]

    def _refuse_taken(self, jobs: Sequence[NewJob], there: set[str]) -> None:
        for job in jobs:
            if job.id in there:
                raise id_taken(job) from None

    def _add_keyed(self, jobs: Sequence[NewJob]) -> list[Added]:
        topics = {Topic.WORK}

        def work(words: Words) -> list[Added]:
            adding = Adding(words, jobs)
            added = adding.all()
            topics.update(topics_of(is_work=True, is_done=adding.is_done))
            return added

        return self.insist(work, "add", topics=topics)

    def exchange(
        self, settlements: Sequence[Settlement], ask: Ask | None
    ) -> tuple[list[bool], Claimed]:
        """Apply what happened, then claim; in one commit, unless limits have to be looked at."""
        if not settlements and ask is None:
            return [], Claimed([])
        return Exchange(self, settlements, self._unsure, self._memory).run(ask)

    def renew(self, holds: Sequence[Hold], lease: float) -> list[bool]:
        """Prolong leases and charge attempts; False for a job this holder has lost."""
        if not holds:
            return []
        values = {
            "seqs": numbers([hold.key for hold in holds]),
            "ids": texts([hold.id for hold in holds]),
            "fences": numbers([hold.fence for hold in holds]),
            "charges": flags([hold.is_charged for hold in holds]),
            "lease": lease,
        }

        def send(words: Words) -> Callable[[], set[tuple[int, str, int]]]:
            cursor = words.say(_SQL["renew"], values)
            return lambda: {(seq, job_id, fence) for seq, job_id, fence in cursor.fetchall()}

        kept = self.pipe(send, "renew")
        return [(hold.key, hold.id, hold.fence) in kept for hold in holds]

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Cut leases that end later than they could if they were renewed now."""
        values = {
            "workers": texts(leases),
            "leases": numbers(leases.values()),
            "others": others,
            "least": min((*leases.values(), others)),
        }
        if not self.look(lambda words: words.say(_SQL["any_later"], values).fetchall()):
            return 0
        return self.step(lambda words: words.say(_SQL["shorten"], values).rowcount, "renew")

    def overdue(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        return self._readable(_SQL["overdue"], {"limit": limit})

    def find(self, job_id: str) -> Job | None:
        """One job."""
        page = self.look(lambda words: page_of(words.say(_SQL["find"], {"id": job_id})))
        if page.odd:
            raise unreadable_job(job_id, page.odd[0].problem)
        return page.jobs[0] if page.jobs else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        values = {"key": unique_key}
        rows = self.look(lambda words: words.say(_SQL["key_holder"], values).fetchall())
        return rows[0][0] if rows else None
