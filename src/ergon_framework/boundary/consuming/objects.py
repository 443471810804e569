"""Artifacts on their way to a consumer: verified before anybody sees a byte of them."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from ergon_framework.boundary.conversing.script import (
    Dice,
    Do,
    Get,
    Now,
    Read,
    Script,
    Shut,
    endured,
)
from ergon_framework.boundary.facts.admission import references
from ergon_framework.boundary.facts.schema import spelled
from ergon_framework.core.call import Call
from ergon_framework.core.retry import RetryRule
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    DataLossError,
    FactInvalidError,
)
from ergon_framework.ports.factstore import Reference
from ergon_framework.storage.failpoints import declare, failpoint

declare("boundary.saving.before", "boundary.saving.after")

IN_MEMORY = 8 << 20
"""Bytes of an opened artifact that stay in memory; more go into a temporary file."""


def reference_of(value: Reference | Mapping[str, Any]) -> Reference:
    """The one artifact that a value refers to."""
    if isinstance(value, Reference):
        return value
    found = references(dict(value), "reference")
    if len(found) != 1:
        raise FactInvalidError(
            f"this refers to {len(found)} artifacts",
            reason="range",
            remedy="give one object with bucket, key, digest and size",
            details={"field": "reference"},
        )
    return found[0]


@dataclass(slots=True)
class Receiving:
    """One artifact on its way into a file."""

    reference: Reference
    file: IO[bytes]
    received: int = 0
    hashed: Any = field(default_factory=hashlib.sha256)

    def script(self, rule: RetryRule, dice: Dice) -> Script[None]:
        """Receive and verify it; a transfer that is cut goes on where it stopped."""
        call = Call(rule, (yield Now()))
        while True:
            before = self.received
            try:
                yield from self._stream()
                break
            except BoundaryError as error:
                if self.received > before:  # whoever gets on has all his patience back
                    call = Call(rule, (yield Now()))
                yield from endured(error, call, dice)
        digest = self.hashed.digest()
        if (self.received, digest) != (self.reference.size, self.reference.digest):
            raise _damaged(self.reference, self.received, digest)

    def _stream(self) -> Script[None]:
        wanted = self.reference
        stream: Any = yield Get(wanted.bucket, wanted.key, self.received, wanted.digest)
        try:
            while self.received <= wanted.size and (data := (yield Read(stream))):
                self.received += len(data)
                self.hashed.update(data)
                yield Do(partial(self.file.write, data))
        finally:
            yield Shut(stream)


def saving(
    reference: Reference, path: str | os.PathLike[str], rule: RetryRule, dice: Dice
) -> Script[Path]:
    """Put an artifact where a path says, whole and verified, or not at all."""
    target = Path(path)
    file: IO[bytes] = yield Do(partial(_beside, target))
    try:
        yield from Receiving(reference, file).script(rule, dice)
        yield Do(partial(_settle, file, target))
    except BaseException:
        file.close()
        with suppress(OSError):
            Path(file.name).unlink()
        raise
    return target


def opening(reference: Reference, rule: RetryRule, dice: Dice) -> Script[IO[bytes]]:
    """An artifact as a file, verified, at its start; whoever opened it closes it."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - the caller's
    try:
        yield from Receiving(reference, file).script(rule, dice)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def getting(reference: Reference, rule: RetryRule, dice: Dice) -> Script[bytes]:
    """An artifact as bytes, verified."""
    file = io.BytesIO()
    yield from Receiving(reference, file).script(rule, dice)
    return file.getvalue()


def _beside(target: Path) -> IO[bytes]:
    """A file in the same folder: only there can it take the target's place in one step."""
    try:
        return tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", delete=False
        )
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {target}: {error.strerror}", remedy="check the folder"
        ) from error


def _settle(file: IO[bytes], target: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    failpoint("boundary.saving.before")
    Path(file.name).replace(target)
    failpoint("boundary.saving.after")


def _damaged(reference: Reference, received: int, digest: bytes) -> DataLossError:
    return DataLossError(
        f"{reference.bucket}/{reference.key} is not the artifact that the fact refers to",
        reason="artifact_mismatch",
        remedy="do not use it; let the node verify its objects",
        details={
            "bucket": reference.bucket,
            "key": reference.key,
            "digest": spelled(reference.digest),
            "size": reference.size,
            "found_digest": spelled(digest),
            "found_size": received,
        },
    )
