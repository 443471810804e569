"""Arguments as JSON: what is stored is exactly what was handed in, or nothing is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ergon_framework.errors import JobError
from ergon_framework.jobs.names import refusal

REMEDY = "pass text, numbers, true or false, None, and lists and dicts of these"


def _plain(value: object) -> Any:
    """A subclass of text or of a number as that text or number."""
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.decode


def encode_args(args: Sequence[Any]) -> bytes:
    """Positional arguments as a JSON array."""
    if not isinstance(args, list | tuple):
        raise refusal("args", "must be a list or a tuple", "write [value] for a single argument")
    return _encoded("args", list(args)) if args else b"[]"


def encode_kwargs(kwargs: Mapping[str, Any] | None) -> bytes:
    """Named arguments as a JSON object."""
    if not kwargs:
        if kwargs is None or isinstance(kwargs, Mapping):
            return b"{}"
    elif isinstance(kwargs, Mapping):
        return _encoded("kwargs", kwargs if type(kwargs) is dict else dict(kwargs))
    raise refusal("kwargs", "must be a dict", "name each argument")


def _encoded(field: str, value: Any) -> bytes:
    # The encoder also takes what JSON has no word for: it writes NaN as null, a date as text, the
    # key 1 as "1". Whoever reads it would get another value, so it is read back and compared.
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
        flaw = next(_flaws(field, value), f"{field} cannot be written as JSON")
        raise JobError(flaw, remedy=REMEDY, details={"field": field}) from error
    for flaw in _flaws(field, value):
        raise JobError(flaw, remedy=REMEDY, details={"field": field})
    return encoded  # it differs only in tuples, which become lists


def _flaws(path: str, value: object) -> Iterator[str]:
    """What JSON cannot carry, with the place of each; never the values themselves."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}, which is no number in JSON"
    elif value is None or isinstance(value, str | int | float):
        return
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            yield from _flaws(f"{path}[{n}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{path} has a key of type {type(key).__name__}, and JSON keys are text"
            yield from _flaws(f"{path}[{_short(key)}]", item)
    else:
        yield f"{path} is of type {type(value).__name__}, which JSON does not have"


def _short(key: object) -> str:
    text = key if isinstance(key, str) else str(type(key).__name__)
    return ascii(text if len(text) <= 40 else text[:40] + "…")
