"""Artifacts in one call each, in base64: for small ones and for clients that only speak unary."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

from ergon_framework.boundary.facts.schema import parsed
from ergon_framework.boundary.serving.object_access import allowed_digest
from ergon_framework.boundary.serving.object_names import checked_name
from ergon_framework.boundary.serving.operations import ADMIN, CORE, demand, operation
from ergon_framework.boundary.serving.pages import object_shape
from ergon_framework.boundary.serving.policy import Permit
from ergon_framework.boundary.serving.requests import Request
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import BoundaryError, DataLossError, FactInvalidError
from ergon_framework.ports.factstore import StoredObject


class PutObject(Request):
    """A small blob in one call; larger ones are streamed to /v1/objects."""

    bucket: str
    key: str
    blob: str
    """The bytes, in base64."""
    expected_digest: str | None = None


class ObjectName(Request):
    """HeadObject and GetObject."""

    bucket: str
    key: str
    fact_offset: int | None = None
    """Of a fact that refers to it: needed by a caller that may not use the whole bucket."""


@operation(CORE, PutObject)
def put_object(zone: Zone, permit: Permit, asked: PutObject) -> dict[str, Any]:
    """Store bytes under a name, for ever; the answer means they are on disk."""
    bucket, key = _named(permit, asked.bucket, asked.key)
    try:
        data = base64.b64decode(asked.blob, validate=True)
    except (binascii.Error, ValueError):
        raise FactInvalidError(
            "blob is not base64",
            reason="encoding",
            remedy="encode the bytes, or PUT them as they are to /v1/objects/{bucket}/{key}",
            details={"field": "blob"},
        ) from None
    expected = asked.expected_digest and parsed(asked.expected_digest, "expected_digest")
    receipt = zone.put(bucket, key, data, expected or None)
    return {"bucket": bucket, "key": key, "digest": receipt.digest, "size": receipt.size}


@operation(ADMIN, ObjectName)
def head_object(zone: Zone, permit: Permit, asked: ObjectName) -> dict[str, Any]:
    """Size and digest of an object."""
    stored = _found(zone, permit, asked)
    blob = zone.objects.stat(stored.digest)
    if blob is None or blob.size != stored.size:
        raise damaged(stored.bucket, stored.key)
    return object_shape(stored)


@operation(ADMIN, ObjectName)
def get_object(zone: Zone, permit: Permit, asked: ObjectName) -> dict[str, Any]:
    """A small object in one call; larger ones are streamed from /v1/objects."""
    stored = _found(zone, permit, asked)
    if stored.size > zone.settings.limits.body_bytes // 2:
        raise BoundaryError(
            f"the object has {stored.size} bytes, too many for one call",
            code="failed_precondition",
            reason="object_too_large",
            remedy="GET /v1/objects/{bucket}/{key}",
        )
    source = zone.objects.open(stored.digest)
    data = b""
    if source is not None:
        try:
            data = source.read(stored.size)
        finally:
            source.close()
    if source is None or hashlib.sha256(data).digest() != stored.digest:
        raise damaged(stored.bucket, stored.key)
    return {**object_shape(stored), "blob": base64.b64encode(data).decode()}


def damaged(bucket: str, key: str) -> DataLossError:
    """The error of an object whose bytes are gone or cut off."""
    return DataLossError(
        f"the bytes of {bucket}/{key} are missing, cut off or changed where this zone keeps them",
        reason="object_damaged",
        remedy="put the same bytes again, or restore them from a backup",
        details={"bucket": bucket, "key": key},
    )


def _found(zone: Zone, permit: Permit, asked: ObjectName) -> StoredObject:
    name = checked_name(asked.bucket, asked.key)
    return zone.found(*name, allowed_digest(zone, permit, name, None, asked.fact_offset))


def _named(permit: Permit, bucket: str, key: str) -> tuple[str, str]:
    name = checked_name(bucket, key)
    demand(permit.may_use_bucket(bucket), permit, f"use the bucket {bucket}", bucket=bucket)
    return name
