"""Arguments as Celery's JSON serializer writes them.

Dates, UUIDs, decimals and bytes become small marked objects, which are turned back where the task
runs: a task gets the same values from Ergon as from Celery. The marks are those of kombu 5.3 and
later.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from ergon_framework.core.json_names import name_written_twice
from ergon_framework.errors import JobError

_TYPE, _VALUE = "__type__", "__value__"
_MARK = {_TYPE, _VALUE}
_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda fields: UUID(**fields),
    "bytes": lambda text: text.encode(),
    "base64": base64.b64decode,
}


def encode(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The arguments of a call as plain JSON values."""
    check_types(name, args, kwargs)
    try:
        text = json.dumps([list(args), dict(kwargs)], default=_marked)
    except (TypeError, ValueError, RecursionError) as error:
        raise unwritable_argument(name, error) from error
    refuse_repeated_names(name, text)
    # Read back, so that the job holds what a worker of Celery would have read from the message.
    sent: list[Any] = json.loads(text)
    return sent[0], sent[1]


def unwritable_argument(name: str, error: Exception) -> JobError:
    """The error for a call whose arguments are not JSON."""
    return JobError(
        f"an argument of the task {name!r} cannot be written as JSON: {error}",
        remedy="pass an id and load the object in the task; pickled arguments are not taken",
        details={"field": "args"},
    )


def check_types(name: str, args: Any, kwargs: Any) -> None:
    """Refuse arguments that are no list or mapping, as Celery does: text would become
    its letters.
    """
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        wrong, other = (args, "list") if not isinstance(args, list | tuple) else (kwargs, "dict")
        raise JobError(
            f"the arguments of the task {name!r} are a {type(wrong).__name__}, and not a {other}",
            remedy="write apply_async((1, 2), {'width': 3}), or delay(1, 2, width=3)",
            details={"field": "args" if other == "list" else "kwargs"},
        )


def refuse_repeated_names(name: str, text: str) -> None:
    """Refuse arguments of which a reader would get fewer than were written, because keys are equal
    as text.
    """
    repeated = name_written_twice(text)
    if repeated is not None:
        raise JobError(
            f"an argument of the task {name!r} has two keys that are {repeated[:40]!r} in JSON",
            remedy="use texts as keys; Celery would lose one of the two as well",
            details={"field": "args"},
        )


def encode_result(value: Any) -> Any:
    """The return value of a task as a plain JSON value; unchanged if that is impossible."""
    try:
        return read_result(value, json.dumps(value, default=_marked))
    except (TypeError, ValueError, RecursionError):
        return value  # The executor that writes the outcome says why it cannot be written.


def read_result(value: Any, text: str) -> Any:
    """What a reader of the text gets; the value itself if that would lose something."""
    return value if name_written_twice(text) is not None else json.loads(text)


def decode(value: Any) -> Any:
    """A JSON value with its marked objects turned back."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if isinstance(value, dict):
        if value.keys() == _MARK and (read := _READERS.get(str(value[_TYPE]))) is not None:
            return read(value[_VALUE])
        return {key: decode(each) for key, each in value.items()}
    return value


def _marked(value: Any) -> Any:
    reduce = getattr(value, "__json__", None)
    if reduce is not None:
        return reduce()
    match value:
        case datetime() | date() | time():
            return _mark(type_name(value), value.isoformat())
        case Decimal():
            return _mark("decimal", str(value))
        case UUID():
            return _mark("uuid", {"hex": value.hex})
        case bytes():
            return _bytes(value)
    if any(each.__name__ == "Promise" for each in type(value).__mro__):
        # A lazy translation of Django; compared by name, so that Django is not imported.
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def type_name(value: datetime | date | time) -> str:
    """The mark of a datetime, a date or a time. A datetime is also a date, so it is
    tested first.
    """
    if isinstance(value, datetime):
        return "datetime"
    return "date" if isinstance(value, date) else "time"


def _bytes(value: bytes) -> dict[str, Any]:
    try:
        return _mark("bytes", value.decode())
    except UnicodeDecodeError:
        return _mark("base64", base64.b64encode(value).decode())


def _mark(kind: str, value: Any) -> dict[str, Any]:
    return {_TYPE: kind, _VALUE: value}
