"""Turns what a client hands in into a :class:`NewJob`, or refuses it with the name of the field.

Everything is checked here, once. Stores and workers take a ``NewJob`` as it is. Ids are UUIDv7.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, Unpack

import msgspec

from ergon_framework.core.job import route
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.errors import JobError
from ergon_framework.jobs.payload_codec import refuse_mark
from ergon_framework.ports.job_fields import (
    LISTS,
    TEN_YEARS,
    FieldCheck,
    choice,
    encode_args,
    encode_kwargs,
    name,
    refusal,
)
from ergon_framework.ports.job_options import (
    CHECKS,
    HandlerOptions,
    Handlers,
    JobOptions,
    job_options,
    unknown_option,
)
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.storage.substitutes import find_substitute

__all__ = [
    "MAX_PAYLOAD",
    "HandlerOptions",
    "IdGenerator",
    "JobOptions",
    "JobSpec",
    "check_options",
    "job_options",
    "new_id",
    "new_job",
    "spread",
    "with_handler",
    "without_unique",
]

_MILLISECOND = 1_000_000
_COUNTER_BITS = 12


class IdGenerator:
    """Makes ids; safe to share between threads."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._tick = 0
        self.reset()

    def reset(self) -> None:
        """Draw new random bits: a forked process must not continue with those of its parent."""
        self._lock = threading.Lock()  # The lock may have been held while the parent forked.
        drawn = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
        text = f"{drawn:016x}"
        self._tail = f"{text[:4]}-{text[4:]}"

    def __call__(self) -> str:
        """The next id."""
        with self._lock:
            first = self._now_ns() // _MILLISECOND << _COUNTER_BITS
            # When the clock was set back, or a millisecond is used up, the counter goes on.
            tick = self._tick = first if first > self._tick else self._tick + 1
        text = f"{tick:015x}"
        return f"{text[:8]}-{text[8:12]}-7{text[12:]}-{self._tail}"


new_id = IdGenerator()
os.register_at_fork(after_in_child=new_id.reset)


MAX_PAYLOAD = 1024 * 1024
MAX_PAST = 60.0
"""How many seconds a due time may lie in the past: clocks differ, and between planning and
enqueuing time passes.
"""


JobSpec: TypeAlias = str | Sequence[Any] | Mapping[str, Any]
"""A handler's name, ``(handler, args, kwargs)``, or a dict of these and any options."""


def _retry(field: str, value: Any) -> bytes:
    # Late: most jobs have no policy of their own, and pydantic is slow to import.
    from ergon_framework.jobs.settings import encode_retry

    return encode_retry(field, value)


def _alone(field: str, _value: Any) -> Any:
    raise refusal(field, "cannot be given here", "enqueue that job by itself, or as part of a flow")


_CHECKS: dict[str, FieldCheck] = {
    **CHECKS,
    "retry": _retry,
    "on_duplicate": choice(OnDuplicate),
    "after": _alone,
    "on_failure": _alone,
}


def new_job(
    handler: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_payload: int = MAX_PAYLOAD,
    now: Callable[[], float] = time.time,
    default_id: Callable[[], str] = new_id,
    **options: Unpack[HandlerOptions],
) -> NewJob:
    """The job that these values describe. Each mistake raises a :class:`JobError` of its own.

    ``default_id`` makes the id of a job that is given none.
    """
    handler = name("handler", handler)
    executor = route(handler)[0] if "#" in handler else ""
    encoded_args, encoded_kwargs = encode_args(args), encode_kwargs(kwargs)
    refuse_mark(encoded_args)
    size = len(encoded_args) + len(encoded_kwargs)
    if size > max_payload:
        raise JobError(
            f"args and kwargs take {size:,} bytes of JSON, and the limit is {max_payload:,}",
            remedy="keep the data elsewhere and pass where it is, or raise max_payload in [jobs]",
            details={"field": "args", "size": size, "limit": max_payload},
        )
    fields = check_options(options, now) if options else {}
    if "unique" in fields:
        unique = fields["unique"]
        decode = msgspec.json.decode  # What JSON makes of the arguments, not what was given.
        call = decode(encoded_args), decode(encoded_kwargs)
        fields |= {"unique_key": unique.key_for(handler, *call), "unique": unique.rule}
    if "id" not in fields:
        fields["id"] = default_id()
    return NewJob(
        handler=handler, executor=executor, args=encoded_args, kwargs=encoded_kwargs, **fields
    )


def spread(
    spec: JobSpec, options: dict[str, Any]
) -> tuple[str, Sequence[Any], Mapping[str, Any] | None, dict[str, Any]]:
    """The handler, args, kwargs and options of one of many jobs that share ``options``."""
    if isinstance(spec, str):
        return spec, (), None, options
    if isinstance(spec, LISTS):  # before a look at an abstract class, which takes longer
        if len(spec) == 2:
            return spec[0], spec[1], None, options
        if 1 <= len(spec) <= 3:
            handler, *rest = spec
            args, kwargs = rest or ((), None)
            return handler, args, kwargs, options
    if isinstance(spec, Mapping):
        own = {**options, **spec}
        return own.pop("handler", ""), own.pop("args", ()), own.pop("kwargs", None), own
    raise JobError(
        f"a job cannot be made of {type(spec).__name__}",
        remedy="give a handler's name, (handler, args, kwargs), or a dict",
    )


def with_handler(
    handlers: Handlers,
    handler: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[Sequence[Any], Mapping[str, Any], dict[str, Any]]:
    """The args, kwargs and options of a call that the handler's own checks have accepted."""
    call = handlers.job_call(name("handler", handler), args, kwargs or {})
    merged = job_options(call.options, options)
    if isinstance(merged.get("unique"), str | bool | None):
        return call.args, call.kwargs, merged
    # A key by arguments is made here, where the names of those without a name are known.
    unique = CHECKS["unique"]("unique", merged["unique"])
    merged["unique"] = unique.bound(handler, call.args, call.kwargs, call.names)
    return call.args, call.kwargs, merged


def without_unique(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a handler for a step of a flow, which never counts as a duplicate."""
    return {name: each for name, each in options.items() if name not in _OF_DUPLICATES}


_OF_DUPLICATES = ("unique", "on_duplicate")


def _now() -> float:
    """The time, where no store is asked for it. In a test with a sandbox it is the sandbox's."""
    now: Callable[[], float] = find_substitute("clock", "") or time.time
    return now()


def check_options(options: Mapping[str, Any], now: Callable[[], float] = _now) -> dict[str, Any]:
    """Check options, and return them as fields of a ``NewJob``."""
    fields = {}
    for field, value in job_options(options).items():
        check = _CHECKS.get(field)
        if check is None:
            raise unknown_option(field)
        fields[field] = check(field, value)
    _place_in_time(fields, now)
    _name_the_key(fields)
    if fields.get("metadata") == {}:
        del fields["metadata"]
    if "limit" in fields and "limit_key" not in fields:
        raise refusal("limit", "says nothing without a limit_key", "name the key it limits")
    return fields


def _place_in_time(fields: dict[str, Any], now: Callable[[], float]) -> None:
    """Turn due time and expiry into instants, and check them together."""
    if "run_at" in fields and "delay" in fields:
        raise refusal("run_at", "contradicts delay", "give one of the two")
    if "expires_at" in fields and "expires_in" in fields:
        raise refusal("expires_at", "contradicts expires_in", "give one of the two")
    if fields.keys().isdisjoint(("run_at", "expires_at", "expires_in")):
        return
    at = now()
    due = at + fields.get("delay", 0.0)
    if "run_at" in fields:
        due = _due(fields, at)
    if "expires_in" in fields:
        fields["expires_at"] = at + fields.pop("expires_in")
    expiry = fields.get("expires_at")
    if expiry is not None and expiry <= due:
        when = "is in the past" if expiry <= at else "is before the job is due"
        raise refusal("expires_at", when, "give a later one, or none")
    if expiry is not None and expiry > at + TEN_YEARS:
        # Not every store can keep every instant, and a job with an instant that cannot be kept
        # could never be read again.
        far = "lies more than ten years ahead"
        raise refusal("expires_at", far, "leave it out for a job that does not expire")


def _due(fields: dict[str, Any], at: float) -> float:
    due: float = fields["run_at"]
    if due < at - MAX_PAST:
        ago = f"lies {at - due:,.0f} seconds in the past"
        raise refusal("run_at", ago, "leave it out to run the job now")
    if due > at + TEN_YEARS:
        raise refusal("run_at", "lies more than ten years ahead", "is it in seconds?")
    if due <= at:
        del fields["run_at"]
        return at
    return due


def _name_the_key(fields: dict[str, Any]) -> None:
    unique = fields.get("unique")
    if unique is False:
        del fields["unique"]
        fields.pop("on_duplicate", None)
    elif unique is not None:
        fields.setdefault("on_duplicate", OnDuplicate.EXISTING)
        if isinstance(unique, str):
            fields["unique_key"] = fields.pop("unique")
    elif "on_duplicate" in fields:
        raise refusal("on_duplicate", "says nothing without a unique key", "give unique as well")
