"""Facts and jobs as models of pydantic and of msgspec, with the limits that ours have."""

import re
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from ergon_framework.boundary.facts import schema


def _whole(pattern: re.Pattern[str]) -> str:
    return f"^(?:{pattern.pattern})$"


def _pydantic_text(pattern: re.Pattern[str], longest: int) -> Any:
    return Annotated[str, Field(max_length=longest, pattern=_whole(pattern))]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        alias_generator=to_camel,
        regex_engine="python-re",  # the other one does not know all of our patterns
    )


_Zone, _Note = _pydantic_text(schema.ZONE, 128), _pydantic_text(schema.NOTE, 255)
_Labels = Annotated[
    dict[_pydantic_text(schema.NOTE, 63), _Note], Field(max_length=schema.MAX_LABELS)
]


class Envelope(_Strict):
    """An envelope."""

    message_id: _pydantic_text(schema.MESSAGE_ID, 255)
    from_zone: _Zone
    to_zone: _Zone
    produced_at_unix_ms: Annotated[int, Field(gt=0, le=schema.MAX_INT64)]
    correlation_id: _Note | None = None
    causation_id: _Note | None = None
    labels: _Labels | None = None
    object_media_type: _pydantic_text(schema.MEDIA_TYPE, 255) | None = None
    object_schema: _Note | None = None


class Fact(_Strict):
    """A fact; what its object may hold is not looked at."""

    subject: _pydantic_text(schema.SUBJECT, schema.MAX_SUBJECT)
    predicate: _pydantic_text(schema.PREDICATE, schema.MAX_PREDICATE)
    object_json: Any


class Item(_Strict):
    """Both, as a producer sends them."""

    envelope: Envelope
    fact: Fact


_Key = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]


class Job(BaseModel):
    """A job with the options that are used most."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    handler: _Key
    args: list[JsonValue]
    kwargs: dict[str, JsonValue]
    queue: _Key = "default"
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    delay: Annotated[float, Field(ge=0, le=3653 * 86_400)] = 0.0
    timeout: Annotated[float, Field(gt=0, le=7 * 86_400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    unique: _Key | None = None
    limit_key: _Key | None = None
    correlation_id: _Key | None = None


# ---- the same fact for msgspec --------------------------------------------------------------


def _msgspec_text(pattern: re.Pattern[str], longest: int) -> Any:
    return Annotated[str, msgspec.Meta(max_length=longest, pattern=_whole(pattern))]


_MsgspecNote = _msgspec_text(schema.NOTE, 255)


class MsgspecEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An envelope."""

    message_id: _msgspec_text(schema.MESSAGE_ID, 255)
    from_zone: _msgspec_text(schema.ZONE, 128)
    to_zone: _msgspec_text(schema.ZONE, 128)
    produced_at_unix_ms: Annotated[int, msgspec.Meta(gt=0, le=schema.MAX_INT64)]
    correlation_id: _MsgspecNote | None = None
    causation_id: _MsgspecNote | None = None
    labels: dict[_msgspec_text(schema.NOTE, 63), _MsgspecNote] | None = None
    object_media_type: _msgspec_text(schema.MEDIA_TYPE, 255) | None = None
    object_schema: _MsgspecNote | None = None


class MsgspecFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fact."""

    subject: _msgspec_text(schema.SUBJECT, schema.MAX_SUBJECT)
    predicate: _msgspec_text(schema.PREDICATE, schema.MAX_PREDICATE)
    object_json: msgspec.Raw


class MsgspecGivenFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fact whose object is a value."""

    subject: _msgspec_text(schema.SUBJECT, schema.MAX_SUBJECT)
    predicate: _msgspec_text(schema.PREDICATE, schema.MAX_PREDICATE)
    object_json: Any


class MsgspecItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both."""

    envelope: MsgspecEnvelope
    fact: MsgspecFact
