"""The frozen base of every settings model, and the constrained types of its fields."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn, Self, get_args

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

_PHRASES = {
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be greater than {gt:g}",
    "less_than_equal": "must be at most {le:.12g}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "literal_error": "must be {expected}",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": "must be a name of letters, digits, '_', '-' and '.'",
    "extra_forbidden": "is an unknown key",
    "missing": "is missing",
}


class SettingsModel(BaseModel):
    """A frozen record of settings that names what is wrong with it and where."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _tell(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            lines = [_explained(details, cls) for details in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(cls.__name__, lines, hide_input=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced, checked like a new one; fields that were not set stay
        unset.
        """
        if not update:
            return super().model_copy(deep=deep)
        fields = dict(iter(self))  # ``dict(self)`` would ask a field that is named ``keys``
        copied = type(self).model_validate({**fields, **update})
        copied.__pydantic_fields_set__.intersection_update({*self.model_fields_set, *update})
        return copied


def _explained(details: ErrorDetails, model: type[BaseModel]) -> InitErrorDetails:
    context = details.get("ctx", {})
    if "text" not in context:  # else a nested document has explained it
        context = {"text": _text(details, model), "model": model.__name__}
    kind = PydanticCustomError(details["type"], "{text}", context)
    return InitErrorDetails(type=kind, loc=details["loc"], input=details["input"])


def explain(details: ErrorDetails) -> str:
    """What is wrong, in a phrase that may follow the field's name."""
    context = details.get("ctx", {})
    if "text" in context:  # a document has explained it already
        return str(context["text"])
    if details["type"] == "value_error":
        return str(context["error"])
    if details["type"] == "float_type" and isinstance(details["input"], int):
        return "is too large" if details["input"] > 0 else "is too small"  # for a float
    phrase = _PHRASES.get(details["type"])
    return phrase.format(**context) if phrase else f"is wrong: {details['msg']}"


def explain_in(heading: str, details: ErrorDetails) -> str:
    """The same to somebody who wrote a file and has seen no class.

    An unknown key is told with the heading of its table, unless that is empty.
    """
    text, model = explain(details), details.get("ctx", {}).get("model")
    before, found, after = text.rpartition(f" in {model}; ")
    if found and heading:
        return f"{before} in {heading}; {after}"
    return text.removeprefix(f"{model} ")


def dotted(path: Iterable[object]) -> str:
    """A path of keys as settings write it: what breaks a line or is easily overlooked is quoted."""
    return ".".join(_key(part) for part in path if part != "[key]")


def _key(part: object) -> str:
    key = str(part)
    return key if key.isprintable() and key.strip(" ") == key != "" else json.dumps(key)


def _text(details: ErrorDetails, model: type[BaseModel]) -> str:
    if details["type"] == "extra_forbidden":
        return unknown_key(str(details["loc"][-1]), model)
    value = details["input"]
    if details["type"] == "model_type" and isinstance(value, BaseModel):
        return f"must be {model.__name__}, not {type(value).__name__}"
    problem = explain(details)
    field = dotted(details["loc"]) or model.__name__
    # Text where a table belongs may be a URL with a password in it.
    is_shown = isinstance(value, str | int | float | None) and not problem.endswith("table")
    is_shown = is_shown and details["loc"][-1:] != ("[key]",)  # the field's name ends with it
    if details["type"] == "missing" or not is_shown or not _is_short(value):
        return f"{field} {problem}"
    return f"{field} {problem}, not {_shown(value)!r}"


def _shown(value: object) -> object:
    from ergon_framework.redaction import redacted_text  # late: it takes its time, and few need it

    return redacted_text(value) if isinstance(value, str) else value


def _is_short(value: object) -> bool:
    if isinstance(value, int):  # Python refuses to write very large numbers out
        return abs(value) < 10**60
    return len(str(value)) <= 60


def unknown_key(key: str, model: type[BaseModel]) -> str:
    """A sentence that refuses ``key`` and names the key that was probably meant."""
    known = list(model.model_fields)
    meant = list(_deeper(model, key)) or get_close_matches(key.lower(), known, 1)
    hint = (
        "did you mean " + " or ".join(repr(name) for name in meant) + "?"
        if meant
        else "known keys are " + ", ".join(known)
    )
    return f"unknown key {key!r} in {model.__name__}; {hint}"


def _deeper(model: type[BaseModel], key: str) -> Iterator[str]:
    """Where below ``model`` a field of that name stands, as dotted paths."""
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                if key in inner.model_fields:
                    yield f"{name}.{key}"
                yield from (f"{name}.{path}" for path in _deeper(inner, key))


# ---- what may stand in a field ------------------------------------------------------------------


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that refuses every change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


def _refuse(*_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError("settings cannot be changed; make a copy with model_copy(update={...})")


_CHANGES = (
    "__setitem__ __delitem__ __ior__ __iadd__ __imul__ append clear extend insert pop popitem "
    "remove reverse setdefault sort update"
)
for _name in _CHANGES.split():
    for _kind in (FrozenDict, FrozenList):
        if hasattr(_kind, _name):
            setattr(_kind, _name, _refuse)


def frozen(value: Any, also: tuple[type, ...] = (), deep: int = 20) -> Any:
    """A deep copy that cannot be changed, of JSON values and of the types in ``also``."""
    if deep < 0:
        raise ValueError("must not be nested deeper than 20 levels")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("must have text as keys")
        return FrozenDict({frozen(k): frozen(v, also, deep - 1) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(frozen(item, also, deep - 1) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must hold finite numbers only")
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("must hold text that UTF-8 can carry")
    if value is None or isinstance(value, (str, int, float, *also)):
        return value
    raise ValueError(f"must hold JSON values only, and {type(value).__name__} is none")


def thawed(value: Any) -> Any:
    """A frozen value as plain dicts and lists, which may be changed."""
    if isinstance(value, dict):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thawed(item) for item in value]
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):  # pydantic would read True as 1
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _or_none(value: object) -> object:
    return None if _word(value) in ("", "none", "null") else value


OrNone = BeforeValidator(_or_none)
Switch = Annotated[bool, BeforeValidator(_word)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]
CountOrZero = Annotated[int, Field(ge=0), BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0), AllowInfNan(False), BeforeValidator(_number)]
PositiveOrZero = Annotated[float, Field(ge=0), AllowInfNan(False), BeforeValidator(_number)]
Factor = Annotated[float, Field(ge=1), AllowInfNan(False), BeforeValidator(_number)]
Ratio = Annotated[float, Field(ge=0, le=1), AllowInfNan(False), BeforeValidator(_number)]
