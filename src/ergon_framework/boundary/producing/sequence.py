"""One publication from beginning to end, with a bar for those who like to watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from ergon_framework.boundary.conversing.files import Artifact, Blob, digest_of, source_of
from ergon_framework.boundary.conversing.script import Do, Script
from ergon_framework.boundary.conversing.transport import Report, Source
from ergon_framework.boundary.model import Envelope, Fact, FactLike, Receipt
from ergon_framework.boundary.producing.publishing import (
    Habits,
    Publication,
    appending,
    check_object,
    message_json,
    placed,
    putting,
)
from ergon_framework.errors import FactInvalidError
from ergon_framework.storage.failpoints import declare, failpoint

declare("boundary.publishing.before", "boundary.publishing.after")

Progress: TypeAlias = bool | Callable[[str, int, int], None] | None
"""A bar (True), none (False), one when it is worth it (None), or a function that is told the name
of the file, how many bytes have been sent, and how many there are."""

LARGE = 8 << 20
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
    files: Sequence[Artifact | Blob],
    habits: Habits,
    progress: Progress,
) -> Script[Receipt]:
    """Put every file, one after the other; then append the fact that refers to them."""
    artifacts = [each if isinstance(each, Artifact) else Artifact(each) for each in files]
    check_object(fact, artifacts)
    # Whatever can be refused is refused before the first byte goes.
    message_json(envelope, fact, strict_ids=habits.strict_ids)
    publication = Publication(fact, artifacts)
    with ExitStack() as stack:
        sources: list[Source] = []
        for artifact in artifacts:
            source: Source = yield Do(lambda blob=artifact.path: source_of(blob))  # type: ignore[misc]
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
                        named.bucket or "", named.key or "", source, digest, report, habits
                    )
                )
            )
    message = message_json(
        envelope, publication.ready(), strict_ids=habits.strict_ids, is_quiet=True
    )
    failpoint("boundary.publishing.before")
    receipt = yield from appending(message, habits)
    failpoint("boundary.publishing.after")
    return receipt


class _Watch:
    """Who is told about each file."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._callback = progress if callable(progress) else None
        is_worth_it = total > LARGE and sys.stderr.isatty()
        self._has_bar = progress is True or (progress is None and is_worth_it)
        self._bar: Any = None

    def __enter__(self) -> Callable[[str, int], Report]:
        if self._has_bar:
            self._bar = _bar()
            self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _report(self, name: str, total: int) -> Report:
        if self._callback is not None:
            callback = self._callback
            return lambda sent: callback(name, sent, total)
        if self._bar is not None:
            bar, task = self._bar, self._bar.add_task(name or "blob", total=total)
            return lambda sent: bar.update(task, completed=sent)
        return None


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
