"""The store's other two sides: the operator's desk and the cron schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.gates import Settings, queue_of
from ergon_framework.jobs.stores.options import text_of
from ergon_framework.jobs.stores.own_moves import DUE, ENDED, RUNNING
from ergon_framework.jobs.stores.postgres import looking, sweeping
from ergon_framework.jobs.stores.postgres.adding import Adding
from ergon_framework.jobs.stores.postgres.ground import Ground, topics_of
from ergon_framework.jobs.stores.postgres.rows import Row, page_of
from ergon_framework.jobs.stores.postgres.statements import statements, texts
from ergon_framework.jobs.stores.postgres.words import Words, is_conflict
from ergon_framework.jobs.stores.queue_changes import checked_changes
from ergon_framework.jobs.stores.readable import Reader
from ergon_framework.jobs.stores.unreadable import (
    Note,
    Told,
    argument_problem,
    key_is_held,
    unreadable_job,
    was_status,
)
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    Sweep,
    Topic,
    Unreadable,
    WorkerRecord,
)

_DESK = statements("desk.sql")
_JOBS = statements("jobs.sql")
_SCHEDULES = statements("schedules.sql")


class PostgresDesk(Ground):
    """What operators and cron need."""

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, read_only: bool = False
    ) -> None:
        super().__init__(url, clock=clock, read_only=read_only)
        self._reader = Reader()
        self._told = Told()
        self._swept = ""  # the last limit key that a sweep looked at

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return looking.search(self.look, search, limit, self._told)

    def count(self, search: Search) -> int:
        """How many match."""
        return self.look(lambda words: looking.count(words, search))

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""
        values = {"limit": limit}
        return self.look(lambda words: page_of(words.say(_JOBS["aside"], values))).odd

    def restore_unreadable(self, key: Any) -> bool:
        """Read such a row again, and put it back where it stood."""
        asked: list[str] = []

        def work(words: Words) -> bool:
            found = page_of(words.say(_JOBS["lock_aside"], {"seq": key})).odd
            if not found:
                return False
            status = was_status(Note(found[0].status))
            stage = RUNNING if status is JobStatus.ACTIVE else ENDED if status.is_final else DUE
            values = {"seq": key, "stage": stage, "status": status.value}
            asked.append(found[0].id)
            words.say(_JOBS["put_back"], values)
            page = page_of(words.say(_JOBS["by_seq"], {"seq": key}))
            problem = page.odd[0].problem if page.odd else argument_problem(page.jobs[0])
            if problem is not None:
                raise unreadable_job(found[0].id, problem)
            return True

        try:
            return self.step(work, "desk", topics={Topic.WORK})
        except StoreError as error:
            if asked and is_conflict(error):
                raise key_is_held(asked[-1]) from error
            raise

    def discard_unreadable(self, key: Any) -> bool:
        """Delete such a row for good."""
        return self.step(
            lambda words: words.say(_JOBS["discard"], {"seq": key}).rowcount == 1, "desk"
        )

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""
        return self.step(lambda words: sweeping.purge(words, jobs), "desk") if jobs else 0

    def sweep(self, limit: int) -> Sweep:
        """Purge what has been kept long enough, end what is outdated, forget dead workers.

        Also lets jobs run again that wait for a limit key nobody holds.
        """
        purged = self.step(lambda words: sweeping.purge_due(words, limit), "sweep")
        outdated, freed = self.step(
            lambda words: sweeping.end_outdated(words, limit - purged), "sweep"
        )
        is_woken, self._swept = self.step(
            lambda words: sweeping.wake_blocked(words, freed, self._swept, limit), "sweep"
        )
        workers = self.step(sweeping.forget_workers, "sweep", is_synced=False)
        self.ring(topics_of(is_done=outdated > 0, is_work=is_woken))
        return Sweep(purged, outdated, workers, purged + outdated >= limit)

    def _readable(self, statement: bytes, values: Mapping[str, Any]) -> list[Job]:
        """The jobs that a statement finds; rows that cannot be read are set aside."""
        page = self.look(lambda words: page_of(words.say(statement, values)))
        while page.odd and not self._is_read_only:
            self.set_aside([(each.key, each.problem) for each in page.odd])
            page = self.look(lambda words: page_of(words.say(statement, values)))
        return page.jobs

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name."""
        return self.look(lambda words: looking.queues(words, self.now()), is_one=True)

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change ``is_paused``, ``max_active``, ``rate`` or ``burst``; the answer has no counts."""
        checked = checked_changes(changes)

        def work(words: Words) -> Queue:
            found: list[Row] = []
            while not found:  # somebody else may take away what is there, before it is locked
                words.say(_DESK["touch_queue"], {"name": name})
                found = words.say(_DESK["queue"], {"name": name}).fetchall()
            [[*before, now]] = found
            settings = Settings(*before).changed(checked, now)
            if settings.is_plain:
                words.say(_DESK["unset_queue"], {"name": name})
            else:
                words.say(_DESK["set_queue"], {"name": name, **asdict(settings)})
            return queue_of(name, settings)

        return self.step(work, "desk", topics={Topic.WORK})

    # ---- workers --------------------------------------------------------------------------------

    def tell(self, record: WorkerRecord) -> None:
        """Note that a worker lives; a record with state ``gone`` removes it."""

        def work(words: Words) -> None:
            if record.state == "gone":
                words.say(_DESK["gone"], {"id": record.id})
            else:
                words.say(_DESK["tell"], {"id": record.id, "record": text_of(record)})
                words.say(_DESK["tell_executors"], {"names": texts(["", *record.executors])})

        self.step(work, "desk", is_synced=False)

    def workers(self) -> list[WorkerRecord]:
        """Those that told of themselves, by id."""
        return self._reader.workers(self.look(lambda words: words.say(_DESK["workers"]).fetchall()))

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        return self.look(looking.named, is_one=True)

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        values = {"executor": executor, "due_before": due_before, "limit": limit}
        return self._readable(_DESK["waiting_for"], values)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All, by name."""
        rows = self.look(lambda words: words.say(_SCHEDULES["all"]).fetchall())
        return self._reader.schedules(rows)

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace the definition, keeping nothing of the old one."""
        values = msgspec.structs.asdict(schedule)
        self.step(lambda words: words.say(_SCHEDULES["put"], values), "desk")

    def drop_schedule(self, name: str) -> bool:
        """Remove one; whether it was there."""
        return self.step(
            lambda words: words.say(_SCHEDULES["drop"], {"name": name}).rowcount == 1, "desk"
        )

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Move ``next_at`` on and add the jobs, in one commit, if it still is ``expected``.

        A job whose id or unique key is taken is skipped: the schedule goes on without it.
        """
        topics: set[Topic] = set()

        def work(words: Words) -> bool:
            values = {"name": name, "expected": expected, "next_at": next_at}
            if words.say(_SCHEDULES["advance"], values).rowcount != 1:
                return False
            adding = Adding(words, jobs)
            is_work = adding.possible() > 0
            topics.update(topics_of(is_done=adding.is_done, is_work=is_work))
            return True

        return self.insist(work, "fire", topics=topics)
