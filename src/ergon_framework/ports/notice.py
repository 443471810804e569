"""The catalogue of notices: every state change Ergon tells anybody about, named once.

A notice is a name, an instant and a few fields. Spans, metrics, logs, progress displays and the
operator's commands are readers of notices; none of them is fed in another way. Later parts add
their names here. A name is dotted and in the past tense.
"""

from __future__ import annotations

from typing import Any

_JOB = ("job_id", "attempt", "failure", "delay", "why")

CATALOGUE: dict[str, tuple[str, tuple[str, ...]]] = {
    "call.began": ("A consume or produce call started.", ("call",)),
    "call.ended": ("It ended; the report says how.", ("call", "report", "error")),
    "fetch.began": ("A fetch attempt started.", ("call", "attempt", "requested")),
    "fetch.ended": (
        "A fetch attempt ended with a delivery or a failure.",
        ("call", "attempt", "requested", "delivered", "failure", "began_at"),
    ),
    "fetch.late": ("A fetch returned after its timeout.", ("call", "delivered")),
    "queue.empty": ("Nothing was delivered; the next fetch waits.", ("call", "empties", "delay")),
    "transaction.began": ("A lifecycle started.", ("call", "run")),
    "attempt.ended": (
        "A hook returned, raised or ran out of time.",
        ("attempt", "failure", "exception", "result"),
    ),
    "retry.scheduled": (
        "Another attempt will follow.",
        ("call", "run", "phase", "attempt", "delay", "failure"),
    ),
    "attempt.abandoned": (
        "The engine gave up on a call that cannot be stopped.",
        ("attempt", "abandoned"),
    ),
    "attempt.late": ("An abandoned call came back; its result was dropped.", ("attempt",)),
    "transaction.ended": (
        "A lifecycle reached its one outcome.",
        ("call", "run", "ending", "failure", "handler_failure"),
    ),
    "transaction.duplicate": ("A producer was given an id twice.", ("call", "transaction_id")),
    "transaction.stranded": (
        "A delivered transaction got no outcome and could not be handed back.",
        ("call", "transaction_id"),
    ),
    "settlement.failed": (
        "ack, nack or release raised; the source will deliver again.",
        ("call", "transaction_id", "verb", "error"),
    ),
    "workers.stalled": (
        "Too many abandoned calls: no new work starts until one returns.",
        ("call", "abandoned"),
    ),
    "stop.asked": ("A graceful stop was requested.", ("call", "grace")),
    "job.completed": ("A job ended well.", _JOB),
    "job.retrying": ("An attempt of a job failed; another will follow.", _JOB),
    "job.dead_lettered": ("A job was given up, with its reason.", _JOB),
    "job.returned": ("A job went back to its queue without an outcome.", _JOB),
    "job.rescued": ("The lease of a job had expired: its worker is gone.", ("job_id",)),
    "job.late": ("A result came after its lease was lost, and was ignored.", ("job_id",)),
    "lease.lost": ("A running job now belongs to somebody else.", ("job_id",)),
    "executor.started": ("A process of an executor was started.", ("executor", "pid")),
    "executor.died": ("A process of an executor ended.", ("executor", "pid", "how")),
    "executor.held_back": (
        "An executor does not start; its jobs wait and lose no attempt.",
        ("executor", "delay", "reason"),
    ),
    "circuit.opened": (
        "A circuit opened: the provider is not called for a while.",
        ("tenant_id", "provider_name", "capability", "failures"),
    ),
    "circuit.half_opened": (
        "A circuit lets probes in.",
        ("tenant_id", "provider_name", "capability", "failures"),
    ),
    "circuit.closed": (
        "A circuit closed: the provider answers again.",
        ("tenant_id", "provider_name", "capability", "failures"),
    ),
    "cooldown.began": (
        "A provider asked for a pause; nobody calls it meanwhile.",
        ("tenant_id", "provider_name", "capability", "seconds"),
    ),
    "key.left_open": (
        "A call ended, but its idempotency key could not be told; its lease will run out.",
        ("tenant_id", "provider_name", "capability", "error"),
    ),
    "key.lost": (
        "A call ended after somebody else had taken over its idempotency key.",
        ("tenant_id", "provider_name", "capability"),
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
    "store.lost": ("The store does not answer; it is asked again and again.", ("error",)),
    "store.back": ("The store answers again.", ()),
    "fact.appended": ("A fact is on disk, now or since before.", ("message_id", "offset")),
    "fact.refused": ("An append was refused.", ("message_id", "code", "why")),
    "fact.doubted": ("A fact was taken, but its id or time looks wrong.", ("message_id", "why")),
    "fact.differed": (
        "A duplicate came with other advisory fields; the first ones stay.",
        ("message_id", "offset"),
    ),
    "fact.quarantined": (
        "A fact was set aside for one consumer.",
        ("consumer", "offset", "why", "attempts"),
    ),
    "quarantine.released": ("A fact that was set aside goes out again.", ("id", "consumer")),
    "quarantine.discarded": ("A fact that was set aside was given up.", ("id", "consumer")),
    "receipt.confirmed": ("A consumer has handled facts.", ("consumer", "cursor")),
    "consumer.sought": (
        "An operator set a consumer's cursor.",
        ("consumer", "before", "cursor", "reason"),
    ),
    "gate.sealed": ("An operator shut a link.", ("peer", "reason")),
    "gate.opened": ("An operator opened a link.", ("peer", "reason")),
    "gate.changed": ("A link got another mode.", ("peer", "mode", "why")),
    "link.pulled": ("Facts of a peer are in the inbound log.", ("peer", "facts", "source_offset")),
    "link.gap": (
        "A peer gave facts up; consumers of the inbound log are told.",
        ("peer", "first", "last", "why"),
    ),
    "link.failed": ("A pull failed; it is tried again.", ("peer", "error", "delay")),
    "link.refused": ("A peer's store is another one than before.", ("peer", "epoch", "known")),
    "artifact.fetched": ("A peer's artifact is here.", ("peer", "bucket", "size")),
    "log.truncated": ("Payloads past their time were dropped.", ("log", "facts", "lost")),
    "object.collected": ("An object that no fact refers to was removed.", ("bucket", "size")),
    "call.denied": ("A caller may not do this.", ("identity", "operation", "address")),
    "certificate.rejected": ("New certificates cannot be used; the old ones stay.", ("error",)),
    "policy.rejected": ("A new policy cannot be used; the old one stays.", ("error",)),
    "zone.troubled": ("The zone's store is in trouble.", ("error",)),
    "zone.started": ("A node serves its zone.", ("zone", "address")),
    "zone.stopped": ("A node has stopped.", ("zone",)),
    "worker.started": ("A worker started.", ("worker",)),
    "worker.stopped": ("A worker stopped.", ("worker", "report")),
}
"""Name to (what it means, its fields)."""


class Notice:
    """One thing that happened. Built only when somebody listens."""

    __slots__ = ("at", "fields", "name")

    def __init__(self, name: str, at: float, fields: dict[str, Any]) -> None:
        self.name = name
        self.at = at
        self.fields = fields

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __repr__(self) -> str:
        return f"Notice({self.name!r}, at={self.at!r}, fields={sorted(self.fields)})"
