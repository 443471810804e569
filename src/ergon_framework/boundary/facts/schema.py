"""The fields of a fact: their types and limits, and the digests that identify a fact.

A field that breaks its rule is reported as a ``FactProblem``, by name. ``identity_digest`` is what
makes two facts of one id the same fact or a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import msgspec

from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.errors import FactInvalidError

MAX_ZONE = 128
MAX_SUBJECT = 1024
MAX_PREDICATE = 128
MAX_NOTE = 255
MAX_LABEL = 63
MAX_LABELS = 32
MAX_PROBLEMS = 20
MAX_INT64 = 2**63 - 1
BODY = "body"
"""The path of a whole request, in which fields are named without it."""

MESSAGE_ID = re.compile(r"[\x21-\x7e]{1,255}")
ZONE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
SUBJECT = re.compile(r"[a-z][a-z0-9_]*:[\x21-\x2e\x30-\x7e]+(?:/[\x21-\x7e]+)?")
PREDICATE = re.compile(r"[a-z][a-z0-9_]{0,127}")
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]{1,127}"  # noqa: S105  RFC 6838 calls it a restricted name
MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(?: *; *[\x20-\x7e]+)?")
NOTE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class FactProblem(NamedTuple):
    """A field that is wrong, and why. Never the value itself."""

    field: str
    reason: str
    """missing, type, length, pattern, range, unknown_field, duplicate_key, encoding, …"""
    text: str
    remedy: str


Problems: TypeAlias = list[FactProblem]
ValueCheck: TypeAlias = Callable[[str, Any, Problems], Any]


def refusal(*problems: FactProblem) -> FactInvalidError:
    """The error that names all of them, the first one in front."""
    problems = tuple(each._replace(field=each.field or BODY) for each in problems)
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    listed = [
        {"field": at, "reason": reason, "message": f"{at} {text}"}
        for at, reason, text, _ in problems[:MAX_PROBLEMS]
    ]
    return FactInvalidError(
        f"{first.field} {first.text}{more}",
        reason=first.reason,
        remedy=first.remedy,
        details={"field": first.field, "reason": first.reason, "problems": listed},
    )


def place(path: str, key: str | int) -> str:
    """The path of what lies under a key or at a position."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key.isidentifier() and key.isascii() and len(key) <= 64:
        return f"{path}.{key}" if path else key
    short = key if len(key) <= 40 else key[:40] + "…"
    return f"{path}[{short!a}]"


def named(
    given: Any, path: str, checks: Mapping[str, tuple[ValueCheck, bool]], problems: Problems
) -> dict[str, Any]:
    """The fields of an envelope or a fact; names may be written in lowerCamelCase too."""
    if isinstance(given, msgspec.Struct):
        given = msgspec.structs.asdict(given)
    if not isinstance(given, Mapping):
        reason = "missing" if given is None else "type"
        text = "is missing" if given is None else f"is {kind(given)} instead of an object"
        problems.append(FactProblem(path, reason, text, "give an object with its fields"))
        return {}
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = _snake(key) if isinstance(key, str) else str(key)
        if name not in checks:
            problems.append(_unknown(place(path, str(key)), name, checks))
        elif name in found:
            text = f"is given twice, as {name} and as {_camel(name)}"
            problems.append(FactProblem(place(path, name), "duplicate_key", text, "give it once"))
        else:
            found[name] = value
    return _checked(found, path, checks, problems)


def _checked(
    found: dict[str, Any],
    path: str,
    checks: Mapping[str, tuple[ValueCheck, bool]],
    problems: Problems,
) -> dict[str, Any]:
    """What was found, each value as its check leaves it."""
    fields = {}
    for name, (check, is_required) in checks.items():
        value = found.get(name)
        if value is None and not (name in found and check is anything):
            if is_required:
                problems.append(FactProblem(place(path, name), "missing", "is missing", "give it"))
        else:
            fields[name] = check(place(path, name), value, problems)
    return fields


def kind(value: Any) -> str:
    """What a value is, in the words of JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, list | tuple):
        return "an array"
    return "an object" if isinstance(value, Mapping) else type(value).__name__


def anything(_field: str, value: Any, _problems: Problems) -> Any:
    """Accept any value; it is checked elsewhere."""
    return value


def text_matching(pattern: re.Pattern[str], longest: int, remedy: str) -> ValueCheck:
    """Text that matches a pattern, of at most ``longest`` characters."""

    def check(field: str, value: Any, problems: Problems) -> Any:
        if _is_text(field, value, longest, problems) and not pattern.fullmatch(value):
            problems.append(FactProblem(field, "pattern", "is not of the right form", remedy))
        return value

    return check


def optional_text(field: str, value: Any, problems: Problems) -> Any:
    """Optional text. An empty one counts as left out."""
    if value == "":
        return None
    _is_text(field, value, MAX_NOTE, problems)
    return value


def milliseconds(field: str, value: Any, problems: Problems) -> Any:
    """An instant; also as text or as 1.0, the way JSON made of protocol buffers may write it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value, re.ASCII):
        value = int(value)
    remedy = "give whole milliseconds since 1970"
    if isinstance(value, bool) or not isinstance(value, int):
        text = f"is {kind(value)} instead of a whole number"
        problems.append(FactProblem(field, "type", text, remedy))
    elif not 0 < value <= MAX_INT64:
        problems.append(FactProblem(field, "range", "is not between 1 and 2^63 - 1", remedy))
    return value


def labels(field: str, value: Any, problems: Problems) -> Any:
    """A few words under names."""
    remedy = f"give at most {MAX_LABELS} names with text"
    if not isinstance(value, Mapping):
        text = f"is {kind(value)} instead of an object"
        problems.append(FactProblem(field, "type", text, remedy))
        return value
    if len(value) > MAX_LABELS:
        text = f"has {len(value)} entries, and the limit is {MAX_LABELS}"
        problems.append(FactProblem(field, "length", text, remedy))
        return value
    for name, item in value.items():
        at = place(field, str(name))
        if _is_text(at, name, MAX_LABEL, problems):
            _is_text(at, item, MAX_NOTE, problems, at_least=0)
    return dict(value)


def _is_text(
    field: str, value: Any, longest: int, problems: Problems, *, at_least: int = 1
) -> bool:
    if not isinstance(value, str):
        text = f"is {kind(value)} instead of text"
        problems.append(FactProblem(field, "type", text, "write it as text"))
    elif len(value) > longest:
        text = f"has {len(value):,} characters, and the limit is {longest:,}"
        problems.append(FactProblem(field, "length", text, "shorten it"))
    elif len(value) < at_least:
        problems.append(FactProblem(field, "length", "is empty", "give it at least one character"))
    elif found := _UNPRINTABLE.search(value):
        reason = "pattern" if found[0].isascii() else "encoding"
        text = f"holds the character {found[0]!a} at position {found.start()}"
        problems.append(FactProblem(field, reason, text, "use printable characters only"))
    else:
        return True
    return False


def _unknown(path: str, name: str, checks: Mapping[str, Any]) -> FactProblem:
    near = get_close_matches(name, checks, 1)
    remedy = f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(checks)
    return FactProblem(path, "unknown_field", "is not a field", remedy)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])[A-Z]", lambda found: "_" + found[0].lower(), name)


_ZONE = text_matching(ZONE, MAX_ZONE, "give the name of a zone, without control characters")

ENVELOPE: dict[str, tuple[ValueCheck, bool]] = {
    "message_id": (
        text_matching(MESSAGE_ID, 255, "use 1 to 255 printable ASCII characters without spaces"),
        True,
    ),
    "from_zone": (_ZONE, True),
    "to_zone": (_ZONE, True),
    "produced_at_unix_ms": (milliseconds, True),
    "correlation_id": (optional_text, False),
    "causation_id": (optional_text, False),
    "labels": (labels, False),
    "object_media_type": (
        text_matching(MEDIA_TYPE, 255, "write it as type/subtype, for example application/pdf"),
        False,
    ),
    "object_schema": (optional_text, False),
}
"""Each field of an envelope with its check, and whether it must be there."""

FACT: dict[str, tuple[ValueCheck, bool]] = {
    "subject": (
        text_matching(SUBJECT, MAX_SUBJECT, "write it as kind:id or kind:scope/id, in ASCII"),
        True,
    ),
    "predicate": (text_matching(PREDICATE, MAX_PREDICATE, "write it in lower_snake_case"), True),
    "object_json": (anything, True),
}
"""The fields of a fact. The content of ``object_json`` is checked by the canonical form."""


_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_UNSET = msgspec.UNSET
_encode = msgspec.json.Encoder().encode


class _Content(msgspec.Struct):
    """What two facts of one id must agree upon; the fields are in canonical order."""

    from_zone: str
    object_json: msgspec.Raw
    object_media_type: str | msgspec.UnsetType
    object_schema: str | msgspec.UnsetType
    predicate: str
    subject: str
    to_zone: str


def identity_digest(envelope: Envelope, fact: Fact, canonical_object: bytes) -> bytes:
    """SHA-256 over the canonical form of the content, 32 bytes.

    The object is canonical already and is put in as it is. Times, labels and lineage do not count:
    a retry may have others.
    """
    media_type, schema = envelope.object_media_type, envelope.object_schema
    return sha256(
        _encode(
            _Content(
                envelope.from_zone,
                msgspec.Raw(canonical_object),
                _UNSET if media_type is None else media_type,
                _UNSET if schema is None else schema,
                fact.predicate,
                fact.subject,
                envelope.to_zone,
            )
        )
    ).digest()


def digest_text(digest: bytes) -> str:
    """A digest as it travels."""
    return f"sha256:{digest.hex()}"


def parsed(text: object, field: str) -> bytes:
    """The 32 bytes of a digest as it travels; ``FactInvalidError`` names the field."""
    found = _DIGEST.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        remedy = "write sha256: and 64 hexadecimal digits"
        raise refusal(FactProblem(field, "pattern", "is not a digest", remedy))
    return bytes.fromhex(found[1])
