"""The contract as documents: a ``.proto`` file and an OpenAPI description, served by every node."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

import msgspec

from ergon_framework.boundary.http.responses import STATUS
from ergon_framework.boundary.model import Batch, ObjectReceipt, Receipt
from ergon_framework.boundary.node.operations import (
    ADMIN,
    CORE,
    OPERATIONS,
    FetchFacts,
    OperationRequest,
)

OPENAPI, PROTO = "/openapi.json", "/bsfg/v1/boundary.proto"
DOCUMENTS = frozenset({OPENAPI, PROTO})
_REF = "#/components/schemas/{name}"


class AppendFact(OperationRequest):
    """A fact in its envelope."""

    envelope: EnvelopeFields
    fact: FactFields


class EnvelopeFields(OperationRequest):
    """The system's part of a message."""

    message_id: str
    from_zone: str
    to_zone: str
    produced_at_unix_ms: int
    correlation_id: str | None = None
    causation_id: str | None = None
    labels: dict[str, str] | None = None
    object_media_type: str | None = None
    object_schema: str | None = None


class FactFields(OperationRequest):
    """The domain's part: what happened."""

    subject: str
    predicate: str
    object_json: Any


class AppendFacts(OperationRequest):
    """Facts in order, appended in one commit."""

    items: list[AppendFact]


class AppendResult(msgspec.Struct, omit_defaults=True):
    """The outcome of one item: an offset, or an error."""

    offset: int | None = None
    duplicate: bool = False
    digest: str | None = None
    error: Error | None = None


class AppendResults(msgspec.Struct):
    """The outcomes, in the order of the items."""

    results: list[AppendResult]


class ConsumerPosition(msgspec.Struct):
    """How far a consumer has come."""

    cursor: int


class Found(msgspec.Struct):
    """What the ledger knows about an id."""

    offset: int
    digest: str
    state: str
    log: str


class Error(msgspec.Struct):
    """Every refusal looks like this; ``details`` may hold ``reason``, ``field`` and more."""

    code: str
    message: str
    details: dict[str, Any]


_ANSWERS: dict[str, type] = {
    "AppendFact": Receipt,
    "FetchFacts": Batch,
    "ConfirmReceipt": ConsumerPosition,
    "PutObject": ObjectReceipt,
    "AppendFacts": AppendResults,
    "LookupFact": Found,
}


def document(path: str) -> tuple[str, bytes]:
    """The media type and the text of one of :data:`DOCUMENTS`."""
    if path == PROTO:
        return "text/plain; charset=utf-8", _proto()
    return "application/json", _openapi()


@functools.cache
def _proto() -> bytes:
    return files(__package__).joinpath("boundary.proto").read_bytes()


@functools.cache
def _openapi() -> bytes:
    return json.dumps(openapi(), indent=1).encode()


def openapi() -> dict[str, Any]:
    """The description of every operation."""
    kinds: dict[str, tuple[type, str]] = {
        f"{CORE}/AppendFact": (AppendFact, "Append one fact; the answer means it is on disk."),
        f"{CORE}/FetchFacts": (FetchFacts, "A page of facts for a consumer."),
        f"{ADMIN}/AppendFacts": (AppendFacts, "Append facts in order, in one commit."),
    }
    for path, operation in OPERATIONS.items():
        kinds[path] = (operation.kind, (operation.run.__doc__ or "").strip())
    wanted = [kind for kind, _text in kinds.values()] + [*_ANSWERS.values(), Error]
    _schemas, components = msgspec.json.schema_components(wanted, ref_template=_REF)
    paths = {f"/{path}": _unary(path, *about) for path, about in sorted(kinds.items())}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ergon boundary node", "version": "1"},
        "paths": {**paths, "/v1/objects/{bucket}/{key}": _objects()},
        "components": {"schemas": components},
    }


def _unary(path: str, kind: type, text: str) -> dict[str, Any]:
    service, _, name = path.rpartition("/")
    answer = _ANSWERS.get(name)
    schema = {"type": "object"} if answer is None else _ref(answer)
    return {
        "post": {
            "operationId": f"{service}.{name}",
            "summary": text,
            "requestBody": {"required": True, "content": _json(_ref(kind))},
            "responses": {"200": {"description": "Done.", "content": _json(schema)}, **_refusals()},
        }
    }


def _objects() -> dict[str, Any]:
    names = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("bucket", "key")
    ]
    blob = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    digest = {"name": "Digest-SHA256", "in": "header", "schema": {"type": "string"}}
    piece = {"name": "Range", "in": "header", "schema": {"type": "string"}}
    wanted = {"name": "digest", "in": "query", "schema": {"type": "string"}}
    fact = {"name": "fact_offset", "in": "query", "schema": {"type": "integer"}}
    put = {"description": "On disk.", "content": _json(_ref(ObjectReceipt))}
    got = {"description": "The bytes.", "content": blob}
    return {
        "parameters": names,
        "put": {
            "operationId": "PutObject",
            "summary": "Store bytes under a name, for ever; the answer means they are on disk.",
            "parameters": [digest],
            "requestBody": {"required": True, "content": blob},
            "responses": {"200": put, **_refusals()},
        },
        "get": {
            "operationId": "GetObject",
            "summary": "The bytes, or a range of them.",
            "parameters": [piece, wanted, fact],
            "responses": {"200": got, "206": got, **_refusals()},
        },
        "head": {
            "operationId": "HeadObject",
            "summary": "Size and digest.",
            "parameters": [wanted, fact],
            "responses": {"200": {"description": "In the headers."}},
        },
        "delete": {
            "operationId": "DeleteObject",
            "summary": "Remove an object to which no fact refers.",
            "responses": {"200": {"description": "Removed."}, **_refusals()},
        },
    }


def _refusals() -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        by_status.setdefault(status, []).append(code)
    return {
        str(status): {"description": ", ".join(codes), "content": _json(_ref(Error))}
        for status, codes in sorted(by_status.items())
    }


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
