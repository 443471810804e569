"""What is checked, written and read by hand: facts, jobs, canonical JSON, instants, ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import count, cycle
from typing import Any

import msgspec
from comparison import Record, RunOptions

from ergon_framework.boundary.facts.canonical import canonical, read
from ergon_framework.boundary.facts.ids import hash_of_object, lint
from ergon_framework.boundary.facts.schema import identity_digest
from ergon_framework.boundary.facts.validation import parse_append, validate_fact
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.core.rfc3339 import format_rfc3339, parse_rfc3339
from ergon_framework.jobs.newjob import new_id, new_job
from ergon_framework.ports.factstore import NewFact
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.providers.mapping.retry_after import parse_retry_after
from library_parts.compare import Call, compare

ENVELOPE = {
    "message_id": "order-4711-paid-3",
    "from_zone": "plant-a",
    "to_zone": "office",
    "produced_at_unix_ms": 1_800_000_000_000,
    "correlation_id": "run-17",
    "labels": {"line": "7", "shift": "early"},
}
OBJECT = {
    "amount": 129.5,
    "currency": "EUR",
    "items": [{"sku": f"A-{n}", "count": n, "note": "fragile"} for n in range(6)],
    "paid": True,
}
FACT = {"subject": "order:4711", "predicate": "was_paid", "object_json": OBJECT}
RAW = json.dumps({"envelope": ENVELOPE, "fact": FACT}, separators=(",", ":")).encode()
EPOCH = 1_767_225_600.0


def facts(options: RunOptions) -> Iterator[Record]:
    """A fact as it arrives, until it can be stored: fields, canonical form, digest, the row."""
    limits = LimitSettings()

    def ours() -> Call:
        return lambda: validate_fact(*parse_append(RAW), limits, is_thorough=False)

    others = {"pydantic": _pydantic_admission, "msgspec with patterns": _msgspec_admission}
    yield from compare("facts", options, ours, others)


def given_facts(options: RunOptions) -> Iterator[Record]:
    """The same for a fact that a producer in this process gives as dicts."""
    limits = LimitSettings()

    def ours() -> Call:
        return lambda: validate_fact(ENVELOPE, FACT, limits, is_thorough=False)

    yield from compare("given-facts", options, ours, {"pydantic": _pydantic_given})


def fact_records(options: RunOptions) -> Iterator[Record]:
    """The same for records, as links and producers with types have them."""
    limits, (envelope, fact) = LimitSettings(), (Envelope(**ENVELOPE), Fact(**FACT))

    def ours() -> Call:
        return lambda: validate_fact(envelope, fact, limits, is_thorough=False)

    def with_msgspec() -> Call:
        from library_parts.models import MsgspecEnvelope, MsgspecGivenFact, MsgspecItem

        convert, encode = msgspec.convert, msgspec.json.encode

        def call() -> NewFact:
            said = convert(envelope, MsgspecEnvelope, from_attributes=True)
            told = convert(fact, MsgspecGivenFact, from_attributes=True)
            return _admitted(MsgspecItem(said, told), encode(said), canonical(told.object_json))

        return call

    yield from compare("fact-records", options, ours, {"msgspec with patterns": with_msgspec})


def _pydantic_admission() -> Call:
    from library_parts.models import Item

    validate = Item.model_validate_json

    def call() -> NewFact:
        item = validate(RAW)
        envelope = item.envelope.model_dump_json(exclude_none=True).encode()
        return _admitted(item, envelope, canonical(item.fact.object_json))

    return call


def _pydantic_given() -> Call:
    from library_parts.models import Item

    validate, given = Item.model_validate, {"envelope": ENVELOPE, "fact": FACT}

    def call() -> NewFact:
        item = validate(given)
        envelope = item.envelope.model_dump_json(exclude_none=True).encode()
        return _admitted(item, envelope, canonical(item.fact.object_json))

    return call


def _msgspec_admission() -> Call:
    from library_parts.models import MsgspecItem

    decode, encode = msgspec.json.Decoder(MsgspecItem).decode, msgspec.json.encode

    def call() -> NewFact:
        item = decode(RAW)
        return _admitted(item, encode(item.envelope), read(bytes(item.fact.object_json))[1])

    return call


class _Stored(msgspec.Struct):
    subject: str
    predicate: str
    object_json: msgspec.Raw


def _admitted(item: Any, envelope: bytes, form: bytes) -> NewFact:
    """What validation does once the fields are known to be right."""
    fact, said = item.fact, item.envelope
    stored = _Stored(fact.subject, fact.predicate, msgspec.Raw(form))
    digest = identity_digest(said, fact, form)
    row = msgspec.json.encode(stored)
    lint(said.message_id) or hash_of_object(said.message_id, form)
    return NewFact(said.from_zone, said.message_id, said.to_zone, digest, envelope, row, (), None)


def jobs(options: RunOptions) -> Iterator[Record]:
    """What a client hands in, checked, with an id and its arguments as JSON."""
    args, kwargs = ["someone@example.org", 3], {"subject": "hello", "tags": ["a", "b"]}
    options: dict[str, Any] = {"queue": "mail", "delay": 5, "max_attempts": 3, "unique": "mail-1"}

    def ours() -> Call:
        return lambda: new_job("mail.send", args, kwargs, **options)

    def with_pydantic() -> Call:
        from pydantic_core import to_json

        from library_parts.models import Job

        def call() -> NewJob:
            job = Job(handler="mail.send", args=args, kwargs=kwargs, **options)
            encoded = {"args": to_json(job.args), "kwargs": to_json(job.kwargs)}
            more = {"queue": job.queue, "delay": job.delay, "max_attempts": job.max_attempts}
            arguments = {"handler": job.handler, "executor": "", "unique_key": job.unique}
            return NewJob(id=new_id(), **arguments, **encoded, **more)

        return call

    yield from compare("jobs", options, ours, {"pydantic": with_pydantic})


def canonical_json(options: RunOptions) -> Iterator[Record]:
    """The canonical form of an object."""

    def ours() -> Call:
        return lambda: canonical(OBJECT)

    def with_rfc8785() -> Call:
        import rfc8785

        return lambda: rfc8785.dumps(OBJECT)

    yield from compare("canonical-json", options, ours, {"rfc8785": with_rfc8785})


def instants(options: RunOptions) -> Iterator[Record]:
    """RFC 3339, read and written: first as workers do, then each instant once."""
    for case, several in (("instants", 40), ("instants-new", 600)):
        yield from _instants(case, options, [EPOCH + 6 * n + n / 1000 for n in range(several)])


def _instants(case: str, options: RunOptions, moments: list[float]) -> Iterator[Record]:
    texts = [format_rfc3339(each) for each in moments]

    def ours() -> Call:
        read, write = cycle(texts).__next__, cycle(moments).__next__
        return lambda: (parse_rfc3339(read()), format_rfc3339(write()))

    def with_datetime() -> Call:
        read, write = cycle(texts).__next__, cycle(moments).__next__
        parse, made = datetime.fromisoformat, datetime.fromtimestamp
        return lambda: (parse(read()).timestamp(), made(write(), UTC).isoformat())

    def with_msgspec() -> Call:
        read, write = cycle(texts).__next__, cycle(moments).__next__
        convert, plain, made = msgspec.convert, msgspec.to_builtins, datetime.fromtimestamp
        return lambda: (convert(read(), datetime).timestamp(), plain(made(write(), UTC)))

    yield from compare(case, options, ours, {"datetime": with_datetime, "msgspec": with_msgspec})


def ids(options: RunOptions) -> Iterator[Record]:
    """A UUIDv7 as text."""

    def with_uuid_utils() -> Call:
        from uuid_utils import uuid7

        return lambda: str(uuid7())

    def with_uuid6() -> Call:
        from uuid6 import uuid7

        return lambda: str(uuid7())

    others = {"uuid-utils": with_uuid_utils, "uuid6": with_uuid6}
    yield from compare("ids", options, lambda: new_id, others)


def retry_after(options: RunOptions) -> Iterator[Record]:
    """A number of seconds, and a date, as they stand in the header."""
    date = format_datetime(datetime.fromtimestamp(EPOCH, UTC), usegmt=True)
    spellings = ("120", date)

    def ours() -> Call:
        numbers = count()
        return lambda: parse_retry_after(spellings[next(numbers) % 2], EPOCH)

    def with_urllib3() -> Call:
        from urllib3.util.retry import Retry

        numbers, parse = count(), Retry().parse_retry_after
        return lambda: parse(spellings[next(numbers) % 2])

    yield from compare("retry-after", options, ours, {"urllib3": with_urllib3})
