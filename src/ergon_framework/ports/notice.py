"""The catalogue of notices: every state change that Ergon reports, named once; and sinks.

A notice is a name, an instant and a few fields. Spans, metrics, logs, progress displays, the
journal and the operator's commands are readers of notices; none of them is fed in another way. A
name is dotted and in the past tense. ``docs/reference/notices.md`` is written from here.

Notices go to a ``Sink``. An engine call without a sink builds none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt, Call


class Routine(StrEnum):
    """Whether a notice belongs to the happy path, which the journal leaves out."""

    NEVER = "no"
    WHEN_WELL = "when it went well"
    ALWAYS = "yes"


class NoticeSpec(NamedTuple):
    """What is known about a notice."""

    text: str
    fields: tuple[str, ...]
    routine: Routine = Routine.NEVER
    part: str = ""
    """The part that emits it, for example ``jobs``."""


_ALWAYS, _WHEN_WELL = Routine.ALWAYS, Routine.WHEN_WELL
_JOB = ("job_id", "attempt", "failure", "delay", "why", "handler", "queue", "traceback")
_LANE = ("tenant_id", "provider_name", "capability")
_CALL = ("call_id", *_LANE, "operation", "reason_code", "attempt")

_ENGINE: dict[str, tuple[Any, ...]] = {
    "call.began": ("A consume or produce call started.", ("call",), _ALWAYS),
    "call.ended": ("It ended; the report says how.", ("call", "report", "error"), _WHEN_WELL),
    "fetch.began": ("A fetch attempt started.", ("call", "attempt", "requested"), _ALWAYS),
    "fetch.ended": (
        "A fetch attempt ended with a delivery or a failure.",
        ("call", "attempt", "requested", "delivered", "failure", "began_at"),
        _WHEN_WELL,
    ),
    "fetch.late": ("A fetch returned after its timeout.", ("call", "delivered")),
    "queue.empty": (
        "Nothing was delivered; the next fetch waits.",
        ("call", "empties", "delay"),
        _ALWAYS,
    ),
    "transaction.began": ("A lifecycle started.", ("call", "run"), _ALWAYS),
    "attempt.ended": (
        "A hook returned, raised or ran out of time.",
        ("call", "attempt", "failure", "exception", "result"),
        _WHEN_WELL,
    ),
    "retry.scheduled": (
        "Another attempt will follow.",
        ("call", "run", "phase", "attempt", "delay", "failure"),
    ),
    "attempt.abandoned": (
        "The engine gave up on a call that cannot be stopped.",
        ("call", "attempt", "abandoned"),
    ),
    "attempt.late": ("An abandoned call came back; its result was dropped.", ("call", "attempt")),
    "transaction.ended": (
        "A lifecycle reached its one outcome.",
        ("call", "run", "ending", "failure", "handler_failure"),
        _WHEN_WELL,
    ),
    "transaction.duplicate": ("A producer was given an id twice.", ("call", "transaction_id")),
    "transaction.stranded": (
        "A delivered transaction got no outcome and could not be handed back.",
        ("call", "transaction_id"),
    ),
    "settlement.ended": (
        "The source was told how a delivery ended, or could not be told.",
        ("call", "run", "transaction_id", "verb", "attempts", "began_at", "failure"),
        _ALWAYS,
    ),
    "settlement.failed": (
        "ack, nack or release raised, and is not tried again; the source will deliver again.",
        ("call", "transaction_id", "verb", "error"),
    ),
    "workers.stalled": (
        "Too many abandoned calls: no new work starts until one returns.",
        ("call", "abandoned"),
    ),
    "stop.asked": ("A graceful stop was requested.", ("call", "grace")),
}

_JOBS: dict[str, tuple[Any, ...]] = {
    "job.enqueued": ("A job is in its queue.", ("job_id", "handler", "queue"), _ALWAYS),
    "job.completed": ("A job ended well.", _JOB, _ALWAYS),
    "job.retrying": ("An attempt of a job failed; another will follow.", _JOB),
    "job.dead_lettered": ("A job was given up, with its reason.", _JOB),
    "job.returned": ("A job went back to its queue without an outcome.", _JOB),
    "job.expired": (
        "Jobs were not started before their expiry, and were dead-lettered.",
        ("count",),
    ),
    "job.rescued": ("The lease of a job had expired: its worker is gone.", ("job_id",)),
    "job.late": ("A result came after its lease was lost, and was ignored.", ("job_id",)),
    "job.refused": (
        "The store refuses to keep the outcome of a job, which will be rescued.",
        ("job_id", "error"),
    ),
    "job.unreadable": (
        "The row of a job cannot be read, and was set aside.",
        ("job_id", "error"),
    ),
    "job.cancelled": ("Somebody cancelled a job.", ("job_id",)),
    "job.cancel_requested": (
        "Somebody asked for a running job to be cancelled; its worker ends it.",
        ("job_id", "by"),
    ),
    "job.rescheduled": ("Somebody let a job that waits run at another time.", ("job_id",)),
    "job.requeued": ("Somebody sent a job back, or wants it to run now.", ("job_id",)),
    "job.edited": (
        "Somebody sent a job back with other arguments: as another one, and this one is cancelled.",
        ("job_id", "became", "by"),
    ),
    "flow.held": (
        "A step failed or was cancelled, and its flow waits until somebody decides.",
        ("flow_id", "flow", "job_id", "failed"),
    ),
    "flow.failed": (
        "A step failed or was cancelled, and its flow stops: steps that wait are cancelled.",
        ("flow_id", "flow", "job_id", "failed"),
    ),
    "lease.lost": ("A running job now belongs to somebody else.", ("job_id",)),
    "schedule.fired": (
        "A schedule enqueued its jobs; so many seconds late.",
        ("schedule", "jobs", "late"),
    ),
    "schedule.put": ("A program stored or changed a schedule.", ("schedule",)),
    "schedule.deleted": ("A program or an operator removed a schedule.", ("schedule",)),
    "schedule.paused": ("An operator paused a schedule.", ("schedule",)),
    "schedule.resumed": ("An operator let a schedule fire again.", ("schedule",)),
    "queue.paused": ("An operator paused a queue; what runs goes on.", ("queue",)),
    "queue.resumed": ("An operator let a queue's jobs start again.", ("queue",)),
    "queue.limited": (
        "An operator limited a queue across all workers.",
        ("queue", "max_active", "rate", "burst", "key_max_active", "key_rate", "key_burst"),
    ),
    "queue.pinned": (
        "An operator left a queue to workers of one version, or of any again.",
        ("queue", "version"),
    ),
    "version.missing": (
        "No worker has run a version for so many seconds; jobs of queues pinned to it wait.",
        ("version", "queues", "seconds"),
    ),
    "version.found": (
        "A worker runs a version that was missing, or no queue is pinned to it any more.",
        ("version",),
    ),
    "executor.started": ("A process of an executor was started.", ("executor", "pid")),
    "executor.stopped": (
        "A process of an executor ended because its worker asked it to.",
        ("executor", "pid", "how"),
    ),
    "executor.recycled": (
        "A process of an executor is replaced: it has had so many jobs, or is so large or old.",
        ("executor", "pid", "reason"),
    ),
    "executor.died": ("A process of an executor ended by itself.", ("executor", "pid", "how")),
    "executor.held_back": (
        "An executor does not start; its jobs wait and lose no attempt.",
        ("executor", "delay", "reason"),
    ),
    "executor.missing": (
        "No worker has had an executor for so many seconds; jobs in these queues wait for it.",
        ("executor", "queues", "seconds"),
    ),
    "executor.found": (
        "An executor that was missing is there again, or nothing waits for it any more.",
        ("executor",),
    ),
    "handler.missing": (
        "No worker has had a handler for so many seconds: these looked. Jobs of the queues wait.",
        ("executor", "handler", "queues", "seconds", "workers"),
    ),
    "handler.found": (
        "A worker has a handler that was missing, or nothing waits for it any more.",
        ("executor", "handler"),
    ),
    "worker.started": ("A worker started.", ("worker",)),
    "worker.stopped": ("A worker stopped.", ("worker", "report")),
}

_PROVIDERS: dict[str, tuple[Any, ...]] = {
    "circuit.opened": (
        "A circuit opened: the provider is not called for a while.",
        (*_LANE, "failures"),
    ),
    "circuit.half_opened": ("A circuit lets probes in.", (*_LANE, "failures")),
    "circuit.closed": ("A circuit closed: the provider answers again.", (*_LANE, "failures")),
    "cooldown.began": (
        "A provider asked for a pause; nobody calls it meanwhile.",
        (*_LANE, "seconds"),
    ),
    "quota.exhausted": (
        "A window's budget is used up; calls are refused for so many seconds.",
        (*_LANE, "limit", "seconds"),
    ),
    "provider.failed": ("A provider call ended in failure.", _CALL),
    "provider.refused": ("A gate refused a provider call; nothing was sent.", _CALL),
    "key.left_open": (
        "A call ended, and neither store nor disk keeps its end under its key: the lease runs out.",
        (*_LANE, "error"),
    ),
    "key.lost": (
        "A call ended after somebody else had taken over its idempotency key.",
        _LANE,
    ),
    "key.taken_over": (
        "A call is made under a key whose holder vanished: whether it made the call is unknown.",
        ("call_id", *_LANE, "idempotency_key"),
    ),
    "task.unbuilt": (
        "The provider of a task could not be built; its calls go back to the queue until it can.",
        ("task_name", "error", "where"),
    ),
    "relay.failed": (
        "Dead letters could not be carried to their queue; it is tried again.",
        ("error", "failures"),
    ),
    "records.dropped": ("Rows of retries and refusals were left out: no room.", ("rows",)),
    "records.spilled": ("Rows went to the disk: the store did not take them.", ("rows",)),
    "records.replayed": ("Rows from the disk reached the store.", ("rows",)),
    "records.lost": ("Rows were taken by neither the store nor the disk.", ("rows",)),
}

_STORES: dict[str, tuple[Any, ...]] = {
    "store.lost": ("The store does not answer; it is asked again and again.", ("error",)),
    "store.back": ("The store answers again.", ()),
    "store.emptied": ("The store has forgotten a worker that told of itself.", ()),
    "dead_letters.redriven": ("An operator sent provider calls back to their tasks.", ("count",)),
    "jobs.deleted": ("An operator deleted jobs that had ended.", ("count",)),
    "jobs.archived": (
        "Ended jobs were written to the archive, and deleted from the store.",
        ("count", "where"),
    ),
    "objects.removed": (
        "Objects of payloads that no job names any more were removed from the object store.",
        ("count",),
    ),
    "subject.forgotten": (
        "An operator erased what the stores told of one subject; the digest is that of its tag.",
        ("digest", "jobs", "archived", "letters", "is_complete"),
    ),
    "archive.failed": (
        "Ended jobs cannot be archived, and stay in the store; it is tried again.",
        ("error", "where"),
    ),
    "archive.held": (
        "A payload of ended jobs or flows is lost: they are not archived, and stay in the store.",
        ("count", "jobs", "where"),
    ),
    "dead_letters.purged": ("An operator deleted dead letters for good.", ("kind", "count")),
}

_BOUNDARY: dict[str, tuple[Any, ...]] = {
    "fact.appended": ("A fact is on disk, now or since before.", ("message_id", "offset"), _ALWAYS),
    "fact.refused": ("An append was refused.", ("message_id", "code", "why")),
    "fact.doubted": ("A fact was taken, but its id or time looks wrong.", ("message_id", "why")),
    "fact.differed": (
        "A duplicate came with other advisory fields; the first ones stay.",
        ("message_id", "offset"),
    ),
    "fact.repaired": (
        "A fact that was damaged in the store is what it was again: a duplicate of it came.",
        ("message_id", "log", "offset"),
    ),
    "fact.damaged": (
        "A duplicate came of a fact that is damaged in the store, and could not repair it.",
        ("message_id", "log", "offset"),
    ),
    "fact.quarantined": (
        "A fact was set aside for one consumer.",
        ("consumer", "offset", "why", "attempts"),
    ),
    "quarantine.released": ("A fact that was set aside goes out again.", ("id", "consumer")),
    "quarantine.discarded": ("A fact that was set aside was given up.", ("id", "consumer")),
    "receipt.confirmed": ("A consumer has handled facts.", ("consumer", "cursor"), _ALWAYS),
    "consumer.sought": (
        "An operator set a consumer's cursor.",
        ("consumer", "before", "cursor", "reason"),
    ),
    "consumer.deleted": ("An operator had a consumer forgotten.", ("consumer",)),
    "gate.sealed": ("An operator shut a link.", ("peer", "reason")),
    "gate.opened": ("An operator opened a link.", ("peer", "reason")),
    "gate.changed": ("A link got another mode.", ("peer", "mode", "why")),
    "link.pulled": (
        "Facts of a peer are in the inbound log.",
        ("peer", "facts", "source_offset"),
        _ALWAYS,
    ),
    "link.gap": (
        "A peer gave facts up; consumers of the inbound log are told.",
        ("peer", "first", "last", "why"),
    ),
    "link.failed": ("A pull failed; it is tried again.", ("peer", "error", "delay")),
    "link.refused": ("A peer's store is another one than before.", ("peer", "epoch", "known")),
    "link.accepted": ("An operator trusts a peer's changed store.", ("peer",)),
    "artifact.fetched": ("A peer's artifact is here.", ("peer", "bucket", "size"), _ALWAYS),
    "log.truncated": ("Payloads past their time were dropped.", ("log", "facts", "lost")),
    "object.collected": (
        "An object that no fact refers to was removed.",
        ("bucket", "size"),
        _ALWAYS,
    ),
    "call.denied": ("A caller may not do this.", ("identity", "operation", "address")),
    "certificate.rejected": ("New certificates cannot be used; the old ones stay.", ("error",)),
    "policy.rejected": ("A new policy cannot be used; the old one stays.", ("error",)),
    "zone.troubled": ("The zone's store is in trouble.", ("error",)),
    "epoch.changed": (
        "The zone's store begins a new epoch: it is a copy, or has lost what it acknowledged.",
        ("zone", "epoch", "why"),
    ),
    "zone.started": ("A node serves its zone.", ("zone", "address")),
    "zone.stopped": ("A node has stopped.", ("zone",)),
}

_CONNECTORS: dict[str, tuple[Any, ...]] = {
    "broker.away": (
        "A broker could not be reached; the next attempt is in so many seconds.",
        ("broker", "reason", "delay"),
    ),
    "broker.refused": (
        "A broker is there and refuses what it is sent, until somebody follows the remedy.",
        ("broker", "reason", "remedy"),
    ),
    "broker.back": ("A broker is there again, after so many seconds.", ("broker", "seconds")),
}

CATALOGUE: Mapping[str, NoticeSpec] = {
    name: NoticeSpec(*known)._replace(part=part)
    for part, table in (
        ("engine", _ENGINE),
        ("jobs", _JOBS),
        ("providers", _PROVIDERS),
        ("jobs and providers", _STORES),
        ("boundary", _BOUNDARY),
        ("connectors", _CONNECTORS),
    )
    for name, known in table.items()
}
"""Name to what it means, its fields, whether it is routine, and the part that emits it."""


class Notice:
    """An event of the runtime. Built only if there is a listener."""

    __slots__ = ("at", "fields", "name")

    def __init__(self, name: str, at: float, fields: dict[str, Any]) -> None:
        self.name = name
        self.at = at
        self.fields = fields

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __repr__(self) -> str:
        return f"Notice({self.name!r}, at={self.at!r}, fields={sorted(self.fields)})"


class Emit(Protocol):
    """Emits a notice, for code that has no sink of its own."""

    def __call__(self, name: str, /, **fields: object) -> None:
        """``name`` is one of the catalogue."""


class Sink(Protocol):
    """A listener of one or more engine calls.

    Both methods are synchronous, must not block, and are called from any worker thread or from the
    event loop. What they raise is logged once and never fails the work.
    """

    def emit(self, notice: Notice) -> None:
        """Handle a notice."""

    def enter(self, attempt: Attempt, context: Context) -> None:
        """User code is about to run in ``context``: make a span current in there.

        ``attempt.note`` and ``attempt.run.note`` belong to the sink.
        """


@runtime_checkable
class LifecycleSink(Protocol):
    """Optional methods of a sink, which receive the events of lifecycles without a Notice for each.

    An engine that finds these methods calls them instead of :meth:`Sink.emit` for
    ``transaction.began``, ``attempt.ended`` and ``transaction.ended``, with the same rules.
    """

    def enter(self, attempt: Attempt, context: Context) -> None:
        """As in :class:`Sink`."""

    def began(self, call: Call, run: Any) -> None:
        """A lifecycle started, at ``run.began_at``."""

    def left(
        self,
        attempt: Attempt,
        at: float,
        failure: Failure | None,
        exception: BaseException | None,
        result: Any,
    ) -> None:
        """A hook returned, raised or ran out of time."""

    def ended(
        self,
        call: Call,
        run: Any,
        at: float,
        ending: str,
        failure: Failure | None,
        handler_failure: Failure | None,
    ) -> None:
        """A lifecycle reached its one outcome."""
