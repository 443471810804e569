"""The steps of a producer: upload blobs, append facts, look up a fact, publish a fact with its
files.

An artifact comes first, its acknowledgement is waited for, then the fact goes; a fact that was
serialised is never serialised again, so that all its attempts are the same bytes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from ergon_framework.boundary.arguments import is_list
from ergon_framework.boundary.client.artifacts import Artifact, FileContent, digest_of, source_of
from ergon_framework.boundary.client.effects import (
    RETRY_RULE,
    ClientEffects,
    Dice,
    Do,
    Now,
    Put,
    called,
    record_of_answer,
    repeated,
)
from ergon_framework.boundary.client.transport import ADMIN, BOUNDARY, BlobSource, ReportBytes
from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.http.codec import error_of_document
from ergon_framework.boundary.model import (
    Envelope,
    EnvelopeLike,
    Fact,
    FactLike,
    ObjectReceipt,
    Receipt,
)
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.boundary.telemetry import labelled
from ergon_framework.core.retry import RetriedCall, RetryRule
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BoundaryNotFoundError,
    ConfigurationError,
    DataLossError,
    FactInvalidError,
)
from ergon_framework.storage.failpoints import declare, failpoint

# How large a fact may be is the node's business: it may allow more than another.
_LIMITS = LimitSettings(fact_bytes=1 << 40)
BATCH_ITEMS = 500
BATCH_BYTES = 4 << 20
"""The most bytes that one ``AppendFacts`` holds."""


class FactWarning(UserWarning):
    """A fact that is accepted although its id may differ when the same event is published again."""


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """How a producer goes about it."""

    rule: RetryRule = RETRY_RULE
    dice: Dice = field(default=lambda: 0.5, repr=False)
    strict_ids: bool = False


def message_json(
    envelope: EnvelopeLike, fact: FactLike, *, strict_ids: bool, is_quiet: bool = False
) -> bytes:
    """The request of an append, checked: what is invalid is never sent."""
    valid = validate_fact(envelope, fact, _LIMITS, strict_ids=strict_ids)
    for text in () if is_quiet else valid.warnings:
        warnings.warn(text, FactWarning, stacklevel=3)
    return b'{"envelope":%b,"fact":%b}' % (valid.new_fact.envelope, valid.new_fact.fact)


def appending(message: bytes, config: ProducerConfig) -> ClientEffects[Receipt]:
    """Append one fact, which was serialised once and for all."""
    answer = yield from called(BOUNDARY + "AppendFact", message, config.rule, config.dice)
    return record_of_answer(answer, Receipt)


def looking_up(
    from_zone: str, message_id: str, config: ProducerConfig
) -> ClientEffects[Receipt | None]:
    """What the node's ledger knows about an id; None when it never saw it."""
    try:
        asked = msgspec.json.encode({"from_zone": from_zone, "message_id": message_id})
    except UnicodeEncodeError:
        return None  # no fact was ever appended with half a character in it
    try:
        answer = yield from called(ADMIN + "LookupFact", asked, config.rule, config.dice)
    except BoundaryNotFoundError:
        return None
    found = record_of_answer(answer, Receipt)
    return msgspec.structs.replace(found, duplicate=True)


# ---- many facts ----


def appending_many(
    items: Iterable[tuple[EnvelopeLike, FactLike]], config: ProducerConfig
) -> ClientEffects[list[Receipt | BoundaryError]]:
    """Append in order; what is invalid is not sent and keeps its place in the results."""
    results: list[Receipt | BoundaryError | None] = []
    messages: list[tuple[int, bytes]] = []
    for place, (envelope, fact) in enumerate(items):
        results.append(None)
        try:
            message = message_json(labelled(envelope), fact, strict_ids=config.strict_ids)
            messages.append((place, message))
        except FactInvalidError as error:
            results[place] = error
    for batch in _batches(messages):
        body = b'{"items":[' + b",".join([message for _, message in batch]) + b"]}"
        answer = yield from called(ADMIN + "AppendFacts", body, config.rule, config.dice)
        for (place, _), outcome in zip(batch, _outcomes(answer, len(batch)), strict=True):
            results[place] = outcome
    return [result for result in results if result is not None]


def _batches(messages: Sequence[tuple[int, bytes]]) -> Iterable[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 0
    for place, message in messages:
        if batch and (len(batch) == BATCH_ITEMS or size + len(message) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((place, message))
        size += len(message)
    if batch:
        yield batch


class _Results(msgspec.Struct):
    results: list[dict[str, Any]]


def _outcomes(answer: bytes, count: int) -> list[Receipt | BoundaryError]:
    results = record_of_answer(answer, _Results).results
    if len(results) != count:
        raise BoundaryError(
            f"{count} facts were sent and {len(results)} results came back", reason="bad_answer"
        )
    return [_outcome(result) for result in results]


def _outcome(result: dict[str, Any]) -> Receipt | BoundaryError:
    if "error" in result:
        return error_of_document(result["error"])
    return record_of_answer(msgspec.json.encode(result), Receipt)


# ---- artifacts ----


def putting(
    bucket: str,
    key: str,
    source: BlobSource,
    digest: str,
    report: ReportBytes,
    config: ProducerConfig,
) -> ClientEffects[ObjectReceipt]:
    """Upload a blob, and check that the node stored the same bytes."""
    call = RetriedCall(config.rule, (yield Now()))
    effect = Put(bucket, key, source, digest, report)
    answer: bytes = yield from repeated(effect, call, config.dice)
    receipt = record_of_answer(answer, ObjectReceipt)
    if (receipt.digest, receipt.size) != (digest, source.size):
        raise DataLossError(
            f"the node acknowledged {bucket}/{key} with another digest or size",
            reason="artifact_mismatch",
            remedy="do not append a fact that refers to it; put it under another key",
            details={"digest": digest, "size": source.size, "found_digest": receipt.digest},
        )
    return receipt


def putting_blob(
    bucket: str, key: str, blob: FileContent, digest: str | None, config: ProducerConfig
) -> ClientEffects[ObjectReceipt]:
    """Upload bytes or a file. The digest is computed here unless the caller knows it."""
    source: BlobSource = yield Do(lambda: source_of(blob))
    try:
        if digest is None:
            digest = yield Do(lambda: digest_of(source))
        digest_text = digest if digest.startswith("sha256:") else f"sha256:{digest}"
        return (yield from putting(bucket, key, source, digest_text, None, config))
    finally:
        source.close()


@dataclass(slots=True)
class Publication:
    """A fact and its artifacts on their way: the fact may go when each artifact is acknowledged."""

    fact: Fact
    artifacts: Sequence[Artifact]
    receipts: list[ObjectReceipt] = field(default_factory=list)

    def acknowledged(self, receipt: ObjectReceipt) -> None:
        """The node has the next artifact on disk."""
        self.receipts.append(receipt)

    def ready(self) -> Fact:
        """The fact with its references; an error as long as an artifact is not acknowledged."""
        if len(self.receipts) != len(self.artifacts):
            missing = self.artifacts[len(self.receipts)]
            raise ArtifactError(
                f"the artifact {missing.name!r} is not acknowledged yet",
                remedy="put it first, wait for the answer, then append the fact",
            )
        if not self.artifacts:
            return self.fact
        pairs = zip(self.artifacts, self.receipts, strict=True)
        return _referring(self.fact, [_reference(artifact, it) for artifact, it in pairs])


def placed(artifact: Artifact, subject: str, digest: str) -> Artifact:
    """The artifact with its bucket and key."""
    kind = subject.partition(":")[0].replace("_", "-")
    folder = digest.removeprefix("sha256:")[:16]
    return replace(
        artifact,
        bucket=artifact.bucket or f"{kind}-files",
        key=artifact.key or f"{folder}/{artifact.name or 'blob'}",
    )


def _reference(artifact: Artifact, receipt: ObjectReceipt) -> dict[str, Any]:
    reference = {
        "bucket": receipt.bucket,
        "key": receipt.key,
        "digest": receipt.digest,
        "size": receipt.size,
        "media_type": artifact.kind,
    }
    return {**reference, "file_name": artifact.name} if artifact.name else reference


def check_object(fact: Fact, artifacts: Sequence[Artifact]) -> None:
    """Refuse, before anything is sent, an object that has no room for references."""
    given = fact.object_json
    if not artifacts or given is None or (isinstance(given, dict) and "attachments" not in given):
        return
    raise FactInvalidError(
        "object_json must be an object without attachments: the files are added there",
        reason="type",
        remedy="publish without files, or leave attachments to publish",
        details={"field": "fact.object_json"},
    )


def _referring(fact: Fact, references: list[dict[str, Any]]) -> Fact:
    if fact.object_json is None and len(references) == 1:
        return msgspec.structs.replace(fact, object_json=references[0])
    given = fact.object_json or {}
    return msgspec.structs.replace(fact, object_json={**given, "attachments": references})


declare("boundary.publishing.before", "boundary.publishing.after")

ShowProgress: TypeAlias = bool | Callable[[str, int, int], None] | None
"""A bar (True), none (False), one when it is worth it (None), or a function that is called with the
name of the file, the bytes sent so far, and their total.
"""

PROGRESS_BYTES = 8 << 20
"""Bytes from which on a bar is worth it."""


def fact_of(fact: FactLike) -> Fact:
    """A fact whose object may still be missing."""
    if isinstance(fact, Fact):
        return fact
    known = {"subject", "predicate", "object_json"}
    names: Any = getattr(fact, "keys", set)()  # one that is no mapping has none
    if not {"subject", "predicate"} <= names <= known:
        raise FactInvalidError(
            "a fact has subject, predicate and object_json, and nothing else",
            reason="missing",
            details={"field": "fact"},
        )
    return Fact(**fact)


def publishing(
    fact: Fact,
    envelope: Envelope | Mapping[str, Any],
    files: Sequence[Artifact | FileContent],
    config: ProducerConfig,
    progress: ShowProgress,
) -> ClientEffects[Receipt]:
    """Upload every file, one after the other; then append the fact that refers to them."""
    if not is_list(files):
        raise ConfigurationError(
            f"files is of type {type(files).__name__}",
            remedy='give a list, for example files=["report.pdf"]',
        )
    artifacts = [each if isinstance(each, Artifact) else Artifact(each) for each in files]
    check_object(fact, artifacts)
    # Whatever can be refused is refused before the first byte goes.
    message_json(envelope, fact, strict_ids=config.strict_ids)
    publication = Publication(fact, artifacts)
    with ExitStack() as stack:
        sources: list[BlobSource] = []
        for artifact in artifacts:
            source: BlobSource = yield Do(lambda blob=artifact.path: source_of(blob))  # type: ignore[misc]
            stack.callback(source.close)
            sources.append(source)
        watch = stack.enter_context(_Watch(progress, sum(each.size for each in sources)))
        for artifact, source in zip(artifacts, sources, strict=True):
            digest: str = yield Do(lambda it=source: digest_of(it))  # type: ignore[misc]
            named = placed(artifact, fact.subject, digest)
            report = watch(artifact.name, source.size)
            publication.acknowledged(
                (
                    yield from putting(
                        named.bucket or "", named.key or "", source, digest, report, config
                    )
                )
            )
    message = message_json(
        # Quiet: its warnings were given above, before the first file was sent.
        envelope,
        publication.ready(),
        strict_ids=config.strict_ids,
        is_quiet=True,
    )
    failpoint("boundary.publishing.before")
    receipt = yield from appending(message, config)
    failpoint("boundary.publishing.after")
    return receipt


class _Watch:
    """Reports the progress of each file."""

    def __init__(self, progress: ShowProgress, total: int) -> None:
        self._callback = progress if callable(progress) else None
        is_worth_it = total > PROGRESS_BYTES and sys.stderr.isatty()
        self._has_bar = progress is True or (progress is None and is_worth_it)
        self._bar: Any = None

    def __enter__(self) -> Callable[[str, int], ReportBytes]:
        if self._has_bar:
            self._bar = _bar()
            self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _report(self, name: str, total: int) -> ReportBytes:
        if self._callback is not None:
            callback = self._callback
            return lambda sent: callback(name, sent, total)
        if self._bar is not None:
            bar, task = self._bar, self._bar.add_task(name or "blob", total=total)
            return lambda sent: bar.update(task, completed=sent)
        return None


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
