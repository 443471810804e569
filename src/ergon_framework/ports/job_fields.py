"""What may stand in each field of a job: names, numbers, instants, trace contexts, arguments.

Each check takes the field's name and its value, and refuses with an error that names the field.
Arguments are encoded as JSON here, once, so that what is refused never reaches a store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ergon_framework.core.option_values import number_problem, shown, word_problem
from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.errors import JobError

MAX_NAME = 255
SCHEDULE_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
MAX_SCHEDULE_NAME = 100
"""The name of a schedule is part of ids, and is typed in commands."""

FieldCheck: TypeAlias = Callable[[str, Any], Any]

# Control characters, what ends a line somewhere, and what UTF-8 cannot carry.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def name(field: str, value: Any) -> str:
    """The name of a handler or a queue."""
    found = _text(field, value, MAX_NAME)
    if found[0] == " " or found[-1] == " ":
        raise refusal(field, "begins or ends with a blank", "write it without")
    return found


def text(longest: int = MAX_NAME) -> FieldCheck:
    """A key of so many characters at most."""
    return lambda field, value: _text(field, value, longest)


def _text(field: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise refusal(field, f"must be text, not {type(value).__name__}", "write it as text")
    if not value:
        raise refusal(field, "is empty", "give it at least one character")
    if len(value) > longest:
        problem = f"has {len(value):,} characters, and the limit is {longest}"
        raise refusal(field, problem, "shorten it, for example to a hash")
    if not (value.isascii() and value.isprintable()):
        found = FORBIDDEN.search(value)
        if found is not None:
            problem = f"holds the control character {found[0]!a} at position {found.start()}"
            raise refusal(field, problem, "use printable characters only")
    return value if type(value) is str else str(value)


def is_storable(value: str) -> bool:
    """Whether a text can be kept at all: UTF-8 carries no lone surrogate."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def refusal(field: str, problem: str, remedy: str) -> JobError:
    """An error that names the field."""
    return JobError(f"{field} {problem}", remedy=remedy, details={"field": field})


DAY = 86_400.0
TEN_YEARS = 3653 * DAY
_FIRST_INSTANT, _LAST_INSTANT = -62_135_596_800.0, 253_402_300_800.0
"""The years 1 to 9999: others cannot be written as dates."""
MAX_ID = 200
MAX_TRACE = 16 * 1024
MAX_TAGS = 16
"""Tags of one job, and names in its metadata."""
MAX_TAG = 100
MAX_VALUE = 255
"""Characters of a tag or name, and of a value in the metadata."""

Instant: TypeAlias = float | datetime | str


def whole(low: int, high: int) -> FieldCheck:
    """A whole number between two others."""

    def check(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            problem = f"must be a whole number, not {type(value).__name__}"
            raise refusal(field, problem, f"give one from {low} to {high}")
        if not low <= value <= high:
            raise refusal(
                field, f"is {_bounded_number(value)}", f"give a number from {low} to {high}"
            )
        return int(value)

    return check


def seconds(low: float, high: float, *, is_above: bool = False) -> FieldCheck:
    """A duration; ``is_above`` excludes the lower bound itself."""
    bounds = f"{'more than' if is_above else 'at least'} {low:g} and at most {high:g}"

    def check(field: str, value: Any) -> float:
        number = _number(field, value)
        if not low <= number <= high or (is_above and number == low):
            raise refusal(field, f"is {number:g} seconds", f"give {bounds}")
        return number

    return check


def instant(field: str, value: Any) -> float:
    """A point in time as seconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            remedy = "give it one, for example datetime.now(UTC)"
            raise refusal(field, "is a datetime without a time zone", remedy)
        return value.timestamp()
    if isinstance(value, str):
        try:
            return parse_rfc3339(value)
        except ValueError as error:
            remedy = "write it like 2030-01-31T12:00:00Z"
            raise refusal(field, f"is no point in time: {error}", remedy) from error
    return _number(field, value)


def dated(field: str, value: Any) -> float:
    """A point in time that can be shown as a date."""
    found = instant(field, value)
    if not _FIRST_INSTANT <= found < _LAST_INSTANT:
        raise refusal(field, "lies outside of the years 1 to 9999", "is it in seconds?")
    return found


def choice(kinds: type[StrEnum]) -> FieldCheck:
    """A check for one of the words of an enumeration."""
    words = ", ".join(kinds)

    def check(field: str, value: Any) -> StrEnum:
        try:
            return kinds(str(value) if isinstance(value, str) else "")
        except ValueError as error:
            raise refusal(field, f"is not one of {words}", "use one of these words") from error

    return check


def trace(field: str, value: Any) -> dict[str, str]:
    """A trace context: a few lines of text under text."""
    remedy = "give what a propagator injects, for example traceparent and tracestate"
    if not isinstance(value, Mapping):
        raise refusal(field, "must be a dict", remedy)
    size = 0
    for key, item in value.items():
        if not (isinstance(key, str) and isinstance(item, str)):
            raise refusal(field, "must hold text under text", remedy)
        if FORBIDDEN.search(key) or FORBIDDEN.search(item):
            raise refusal(field, "holds a control character", remedy)
        size += len(key) + len(item)
    if size > MAX_TRACE:
        raise refusal(field, f"has more than {MAX_TRACE:,} characters", remedy)
    return dict(value)


def tags(field: str, value: Any) -> tuple[str, ...]:
    """A few short texts, each once."""
    remedy = 'give a list of texts, for example ["customer:42"]'
    if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
        raise refusal(field, f"must be a list, not {type(value).__name__}", remedy)
    found = tuple(dict.fromkeys(_label(field, each, MAX_TAG) for each in value))
    if len(found) > MAX_TAGS:
        raise refusal(field, f"are {len(found)}, and the limit is {MAX_TAGS}", "give fewer")
    return found


def metadata(field: str, value: Any) -> dict[str, str]:
    """A few texts under names, in the order of the names."""
    remedy = 'give texts under names, for example {"plan": "pro"}'
    if not isinstance(value, Mapping):
        raise refusal(field, f"must be a dict, not {type(value).__name__}", remedy)
    if len(value) > MAX_TAGS:
        raise refusal(field, f"has {len(value)} names, and the limit is {MAX_TAGS}", "give fewer")
    found = {}
    for key, item in value.items():
        name = _label(field, key, MAX_TAG)
        found[name] = _text(f"{field}[{_short(name)}]", item, MAX_VALUE)
    return dict(sorted(found.items()))


def _label(field: str, value: Any, longest: int) -> str:
    found = _text(field, value, longest)
    if "=" in found:
        problem = f"has an equals sign in {_short(found)}"
        raise refusal(field, problem, "write a colon instead, or give it as metadata")
    return found


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(field, f"must be a number, not {type(value).__name__}", "give seconds")
    try:
        number = float(value)
    except OverflowError as error:
        raise refusal(field, "is too large", "give seconds") from error
    if not math.isfinite(number):
        raise refusal(field, "must be a finite number", "give seconds")
    return number


def _bounded_number(value: int) -> str:
    return str(value) if abs(value) < 10**12 else "too large"


# ---- the options of a job -----------------------------------------------------------------------

AFTER_FAILURE = ("retry", "dead-letter")
_BACKOFF: dict[str, Callable[[Any], str]] = {
    "base": number_problem,
    "multiplier": partial(number_problem, least=1),
    "cap": number_problem,
    "jitter": partial(number_problem, most=1),
}


def check_retry(field: str, value: Any) -> Any:
    """A job's own retry policy: ``RetrySettings``, or a mapping with its fields.

    A document has been checked when it was made. The numbers and words of a mapping are looked at
    here, without pydantic, so that a handler can refuse them where it is declared.
    """
    if hasattr(value, "model_dump"):
        return value
    if not isinstance(value, Mapping):
        raise refusal(field, f"must be a mapping, not {type(value).__name__}", _RETRY_REMEDY)
    for name, item in value.items():
        find_problem = _RETRY.get(name)
        if find_problem is None:
            raise refusal(field, f"is wrong: unknown key {shown(name)}", _RETRY_REMEDY)
        problem = "" if item is None else find_problem(item)
        if problem:
            raise refusal(field, f"is wrong: {name} {problem}", _RETRY_REMEDY)
    return value


def _backoff_problem(value: Any) -> str:
    if hasattr(value, "model_dump"):
        return ""
    if not isinstance(value, Mapping):
        return f"must be a mapping, not {shown(value)}"
    for name, item in value.items():
        find_problem = _BACKOFF.get(name)
        if find_problem is None:
            return f"has an unknown key {shown(name)}; the keys are {', '.join(_BACKOFF)}"
        problem = find_problem(item)
        if problem:
            return f"is refused: {name} {problem}"
    return ""


def _names_problem(value: Any) -> str:
    is_list = isinstance(value, list | tuple | set | frozenset)
    if is_list and all(isinstance(each, str) for each in value):
        return ""
    return f"must be a list of names, not {shown(value)}"


_RETRY: dict[str, Callable[[Any], str]] = {
    "backoff": _backoff_problem,
    "on_error": partial(word_problem, choices=AFTER_FAILURE),
    "on_lost": partial(word_problem, choices=AFTER_FAILURE),
    "on_timeout": partial(word_problem, choices=AFTER_FAILURE),
    "max_retry_after": number_problem,
    "give_up_on": _names_problem,
    "retry_on": _names_problem,
}
_RETRY_REMEDY = f"the keys are those of RetrySettings: {', '.join(_RETRY)}"


def _on_duplicate(field: str, value: Any) -> StrEnum:
    from ergon_framework.core.unique import OnDuplicate  # late: executors load this file

    found: StrEnum = choice(OnDuplicate)(field, value)
    return found


CHECKS: dict[str, FieldCheck] = {
    "id": text(MAX_ID),
    "queue": name,
    "priority": whole(-1000, 1000),
    "delay": seconds(0.0, TEN_YEARS),
    "run_at": instant,
    "expires_in": seconds(0.0, TEN_YEARS, is_above=True),
    "expires_at": instant,
    "timeout": seconds(0.0, 7 * DAY, is_above=True),
    "attempts": whole(1, 10_000),
    "max_attempts": whole(1, 10_000),
    "max_deliveries": whole(1, 100_000),
    "retry": check_retry,
    "on_duplicate": _on_duplicate,
    "limit_key": text(),
    "limit": whole(1, 1_000_000),
    "result_ttl": seconds(0.0, TEN_YEARS),
    "correlation_id": text(),
    "trace_context": trace,
    "tags": tags,
    "metadata": metadata,
}
"""What may stand in each option of a job, by its name."""


def listed(field: str, value: Any, what: str, example: str) -> Iterable[Any]:
    """Refuse a value that is no list or other iterable of ``what``; text is none."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        problem = f"must be a list of {what}, and is {type(value).__name__}"
        raise refusal(field, problem, f"write for example {example}")
    return value


# ---- arguments ----------------------------------------------------------------------------------


REMEDY = "pass text, numbers, true or false, None, and lists and dicts of these"


def _plain(value: object) -> Any:
    """A subclass of text or of a number as that text or number."""
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.decode
LISTS = (list, tuple)
"""As a tuple: this is asked for each job, and a look at a union of types takes longer."""


def encode_args(args: Sequence[Any]) -> bytes:
    """Positional arguments as a JSON array."""
    if not isinstance(args, LISTS):
        raise _no_args()
    return _encoded("args", list(args)) if args else b"[]"


def encode_kwargs(kwargs: Mapping[str, Any] | None) -> bytes:
    """Named arguments as a JSON object."""
    if not kwargs:
        if kwargs is None or type(kwargs) is dict or isinstance(kwargs, Mapping):
            return b"{}"
    elif isinstance(kwargs, Mapping):
        return _encoded("kwargs", kwargs if type(kwargs) is dict else dict(kwargs))
    raise _no_kwargs()


def check_call(args: object, kwargs: object) -> None:
    """Refuse what is no list and no dict: a text would be an argument for each character."""
    if not isinstance(args, LISTS):
        raise _no_args()
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise _no_kwargs()


def _no_args() -> JobError:
    return refusal("args", "must be a list or a tuple", "write [value] for a single argument")


def _no_kwargs() -> JobError:
    return refusal("kwargs", "must be a dict", "name each argument")


def encode_value(field: str, value: Any) -> bytes:
    """Any one value as JSON, under the rules of arguments."""
    return _encoded(field, value)


def _encoded(field: str, value: Any) -> bytes:
    # The encoder also takes what JSON has no word for: it writes NaN as null, a date as text, the
    # key 1 as "1". A reader would get another value, so it is read back and compared.
    try:
        encoded = _encode(value)
        if _decode(encoded) == value:
            return encoded
    except UnicodeEncodeError as error:
        problem = "holds text with a lone surrogate, which UTF-8 cannot carry"
        raise refusal(field, problem, "decode the text properly first") from error
    except RecursionError as error:
        raise refusal(
            field, "is nested too deeply, or holds itself", "pass less at once"
        ) from error
    except (TypeError, NotImplementedError, ValueError) as error:
        problem = next(_problems(field, value), f"{field} cannot be written as JSON")
        raise JobError(problem, remedy=REMEDY, details={"field": field}) from error
    for problem in _problems(field, value):
        raise JobError(problem, remedy=REMEDY, details={"field": field})
    return encoded  # it differs only in tuples, which become lists


def _problems(path: str, value: object) -> Iterator[str]:
    """What JSON cannot carry, with the place of each; never the values themselves."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}, which is no number in JSON"
    elif value is None or isinstance(value, str | int | float):
        return
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            yield from _problems(f"{path}[{n}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{path} has a key of type {type(key).__name__}, and JSON keys are text"
            yield from _problems(f"{path}[{_short(key)}]", item)
    else:
        yield f"{path} is of type {type(value).__name__}, which JSON does not have"


def _short(key: object) -> str:
    text = key if isinstance(key, str) else str(type(key).__name__)
    return ascii(text if len(text) <= 40 else text[:40] + "…")
