"""The outbox: facts go to disk here first, and from here to the node, in order, once.

::

    outbox = Outbox("outbox.db", Producer("https://node:9443", …))
    outbox.start()                      # drains in the background
    outbox.add(envelope, fact)          # returns when it is on disk

While a node is away, for a second or for weeks, facts only use disk space. Whichever process dies,
no fact for which ``add`` has returned is lost, and the node stores each once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

from ergon_framework.boundary.arguments import (
    A_BACKOFF,
    COUNT,
    FILE,
    FLAG,
    FUNCTION,
    SECONDS,
    SECONDS_OR_ZERO,
    ArgumentRule,
    check_given,
    of,
    one_of,
)
from ergon_framework.boundary.client import outbox_drain
from ergon_framework.boundary.client.artifacts import Artifact, FileContent, source_of
from ergon_framework.boundary.client.outbox_drain import (
    Drain,
    DrainEnd,
    DrainObserver,
    DrainReport,
    DrainRule,
    DrainSteps,
    OnRefusal,
    Recovery,
)
from ergon_framework.boundary.client.outbox_store import (
    Figures,
    OutboxEntry,
    OutboxFile,
    OutboxFiles,
    OutboxItem,
    OutboxStore,
    Refused,
    SentItems,
    Waiting,
)
from ergon_framework.boundary.client.publish_effects import (
    Publication,
    check_object,
    fact_of,
    placed,
)
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.model import Envelope, Fact, ObjectReceipt, Receipt
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.boundary.telemetry import traced_publishing
from ergon_framework.core.drain import DRAIN_BACKOFF
from ergon_framework.core.retry import Backoff
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    ErgonError,
    WiringError,
    describe,
)
from ergon_framework.ports.factstore import NewFact
from ergon_framework.storage.sqlite.external_transaction import SqliteJoinable

__all__ = ["DrainEnd", "DrainReport", "Figures", "Outbox", "Refused"]


Attached: TypeAlias = Artifact | FileContent


def attached(
    folder: OutboxFiles,
    fact: Fact | Mapping[str, Any],
    files: Sequence[Attached],
    *,
    is_copied: bool,
) -> tuple[Fact | Mapping[str, Any], tuple[OutboxFile, ...]]:
    """Keep the files, and give the fact references to them; without any it stays as it is."""
    if not files:
        return fact, ()
    plain = fact_of(fact)
    artifacts = [each if isinstance(each, Artifact) else Artifact(each) for each in files]
    check_object(plain, artifacts)
    kept: list[OutboxFile] = []
    try:
        for each in artifacts:
            # Several files of one fact share the limit of the spool.
            beside = sum(file.size for file in kept)
            kept.append(_kept(folder, each, plain.subject, beside, is_copied=is_copied))
    except BaseException:
        # Copies that no row refers to would only be swept an hour later.
        folder.drop(kept)
        raise
    receipts = [
        ObjectReceipt(bucket=file.bucket, key=file.key, digest=file.digest, size=file.size)
        for file in kept
    ]
    return Publication(plain, artifacts, receipts).ready(), tuple(kept)


def _kept(
    folder: OutboxFiles, artifact: Artifact, subject: str, beside: int, *, is_copied: bool
) -> OutboxFile:
    with closing(source_of(artifact.path)) as source:
        if is_copied:
            path, digest, size = folder.keep(source, beside)
        elif isinstance(artifact.path, str | os.PathLike):
            digest, size = folder.measure(source)
            path = str(Path(artifact.path).absolute())
        else:
            raise ConfigurationError("only a file can stay where it is", remedy="use copy=True")
    named = placed(artifact, subject, digest_text(digest))
    return OutboxFile(
        bucket=named.bucket or "",
        key=named.key or "",
        digest=digest_text(digest),
        size=size,
        path=path,
        is_copy=is_copied,
    )


logger = logging.getLogger("ergon_framework.boundary")

WhenHeld: TypeAlias = Literal["wait", "raise"]


class FactSender(Protocol):
    """What an outbox needs of a producer. It brings the retry rule; each call is one attempt."""

    def append_fact(self, envelope: Envelope, fact: Fact) -> Receipt:
        """Append one fact."""

    def append_facts(
        self, items: Sequence[tuple[Envelope, Fact]]
    ) -> Sequence[Receipt | BoundaryError]:
        """Append several in one commit, with an answer for each."""

    def put_object(
        self, bucket: str, key: str, blob: Path, *, digest: str | None = None
    ) -> ObjectReceipt:
        """Upload an artifact."""

    def lookup_fact(self, from_zone: str, message_id: str) -> Receipt | None:
        """What the node has under an id."""


OUTBOX = {
    "path": FILE,
    "producer": ArgumentRule(
        lambda value: callable(getattr(value, "append_fact", None)), "give a Producer"
    ).or_none,
    "clock": FUNCTION,
    "max_items": COUNT.or_none,
    "max_bytes": COUNT.or_none,
    "limits": of(LimitSettings, "give LimitSettings").or_none,
    "strict_ids": FLAG,
    "on_refusal": one_of("set_aside", "stop"),
    "recover": one_of("append", "lookup"),
    "backoff": A_BACKOFF,
    "batch_items": COUNT,
    "batch_bytes": COUNT,
    "poll": SECONDS,
    "busy_timeout": SECONDS_OR_ZERO,
    "keep_sent": SECONDS.or_none,
    "dice": FUNCTION,
}
"""What each of the arguments has to be."""


class Outbox:
    """A durable spool of facts. Any thread may call any method; any process may add."""

    def __init__(
        self,
        path: str | Path,
        producer: FactSender | None = None,
        *,
        clock: Callable[[], float] = time.time,
        max_items: int | None = None,
        max_bytes: int | None = None,
        limits: LimitSettings | None = None,
        strict_ids: bool = False,
        on_refusal: OnRefusal = "set_aside",
        recover: Recovery = "append",
        backoff: Backoff = DRAIN_BACKOFF,
        batch_items: int = 500,
        batch_bytes: int = 1 << 20,
        poll: float = 1.0,
        busy_timeout: float = 5.0,
        keep_sent: float | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        check_given(
            {
                "path": path,
                "clock": clock,
                "max_items": max_items,
                "max_bytes": max_bytes,
                "limits": limits,
                "strict_ids": strict_ids,
                "on_refusal": on_refusal,
                "recover": recover,
                "backoff": backoff,
                "batch_items": batch_items,
                "batch_bytes": batch_bytes,
                "poll": poll,
                "busy_timeout": busy_timeout,
                "keep_sent": keep_sent,
                "dice": dice,
                "producer": producer,
            },
            OUTBOX,
        )
        self.rule = DrainRule(on_refusal, recover, backoff, batch_items, batch_bytes, poll)
        self.last_error: Exception | None = None
        """The last error of the node or the network; None once a fact was sent again."""
        self._spool = OutboxStore(
            path,
            clock=clock,
            max_items=max_items,
            max_bytes=max_bytes,
            busy_timeout=busy_timeout,
            keep_sent=keep_sent,
        )
        self._producer = producer
        self._clock = clock
        self._limits = limits or LimitSettings()
        self._strict_ids = strict_ids
        self._dice = dice
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._switch = threading.Lock()

    # ---- putting facts in ----

    def add(
        self,
        envelope: Envelope | Mapping[str, Any],
        fact: Fact | Mapping[str, Any],
        files: Iterable[Attached] = (),
        *,
        copy: bool = True,
    ) -> int:
        """Spool a fact and return its id once it is on disk; what is invalid is refused here.

        Files go to the node before the fact, which is given references to them. They are copied
        first, unless ``copy=False``: then they must stay as they are until they are sent. The same
        fact again answers the id it has; another one of the same message id is refused.
        """
        fact, kept = attached(self._spool.folder, fact, list(files), is_copied=copy)
        try:
            with traced_publishing(envelope, "boundary.spool") as on_its_way:
                entry = OutboxEntry(self._validated(on_its_way.envelope, fact), kept)
                seq, is_new = self._spool.add(entry)
        except BoundaryError:  # after any other the fact may be there; if not, they are swept
            self._spool.folder.drop(kept)
            raise
        # The same fact again: the row that is there has copies of its own.
        if not is_new:
            self._spool.folder.drop(kept)
        return seq

    def add_in(
        self,
        connection: SqliteJoinable,
        envelope: Envelope | Mapping[str, Any],
        fact: Fact | Mapping[str, Any],
    ) -> int:
        """Spool a fact in the caller's own transaction on the same file, which the caller commits.

        ``connection`` is one of sqlite3, or a connection or session of SQLAlchemy with sqlite3.

        It is there when that is committed, and never when it is rolled back. :meth:`wake`, called
        after the commit, sends it at once; otherwise it is found at the next look.
        """
        with traced_publishing(envelope, "boundary.spool") as on_its_way:
            return self._spool.add_in(
                connection, OutboxEntry(self._validated(on_its_way.envelope, fact))
            )

    # ---- sending ----

    def drain(
        self,
        stop: threading.Event | None = None,
        *,
        until_empty: bool = False,
        when_held: WhenHeld = "wait",
    ) -> DrainReport:
        """Send what is there and what comes, in order, until stopped; or until nothing waits.

        An outage is waited out. ``stop`` is noticed within a second, or at once with :meth:`wake`.
        Only one process drains an outbox at a time: another one waits for its turn, or gets an
        error.
        """
        return outbox_drain.drain(
            self._spool,
            self.script(until_empty=until_empty),
            _single_attempt_producer(self._sender()),
            stop=stop or threading.Event(),
            poll=self.rule.poll,
            waits=when_held == "wait",
            is_over=lambda: until_empty and not self.pending(),
        )

    async def drain_async(
        self,
        producer: Any,
        stop: asyncio.Event | None = None,
        *,
        until_empty: bool = False,
        when_held: WhenHeld = "wait",
    ) -> DrainReport:
        """Like ``drain``, on an event loop, with an async producer."""
        return await outbox_drain.drain_async(
            self._spool,
            self.script(until_empty=until_empty),
            _single_attempt_producer(producer),
            stop=stop or asyncio.Event(),
            poll=self.rule.poll,
            waits=when_held == "wait",
            is_over=lambda: until_empty and not self.pending(),
        )

    def script(self, *, until_empty: bool) -> outbox_drain.MakeScript:
        """The steps of a drain, for a caller that performs them; ``drain`` performs them itself."""

        def make(is_stopped: Callable[[], bool]) -> DrainSteps[DrainReport]:
            return Drain(
                self._spool,
                self.rule,
                is_stopped=is_stopped,
                dice=self._dice,
                until_empty=until_empty,
                observer=_Reporter(self),
            ).script()

        return make

    def start(self) -> None:
        """Drain in the background from now on. Starting twice is fine."""
        self._sender()
        with self._switch:
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._ending.clear()
                self._thread = current_clock().spawn("ergon-outbox", self._run)

    def stop(self, timeout: float | None = None) -> bool:
        """Stop the background drain after its current send; returns whether it ended in time."""
        with self._switch:
            if self._thread is None:
                return True
            self._ending.set()
            self.wake()
            # Waits for the thread with the lock held: no other caller can start a second one.
            self._thread.join(timeout)
            return not self._thread.is_alive()

    def wake(self) -> None:
        """Wake the drain of any process: after a commit, or when the node answers again."""
        self._spool.notify()

    # ---- after the node was restored from a backup ----

    def resend(self, since: float | None = None) -> int:
        """Send again what was sent since an instant of this computer's clock (Unix seconds; None:
        all that is kept, which is right when the node's clock may be another).

        ``keep_sent`` says for how many seconds it is. The facts go back to their places in the
        line, with their files; the node recognises those that it has. How many there were.
        """
        return self._spool.resend(since)

    def kept(self) -> SentItems:
        """What could be sent again: how many facts, their bytes, and when they were sent."""
        return self._spool.kept()

    # ---- what was refused ----

    def refused(self) -> list[Refused]:
        """Facts that the node refused, with its reason, in the order they were added."""
        return self._spool.refused()

    def retry(self, refused_id: int) -> None:
        """Send a refused fact again, before everything that was added after it."""
        self._spool.retry(refused_id)

    def discard(self, refused_id: int) -> None:
        """Discard a refused fact for good."""
        self._spool.discard(refused_id)

    # ---- looking ----

    @property
    def path(self) -> Path:
        """The file of the spool."""
        return self._spool.path

    @property
    def files_folder(self) -> Path:
        """Where copies of artifacts are kept until they are sent; made with the first of them."""
        return self._spool.folder.folder

    def waiting(self, limit: int = 1000, *, after: int = 0) -> list[Waiting]:
        """What is in the line after an id, refused facts included, without contents."""
        return self._spool.line(limit, after=after)

    def pending(self) -> int:
        """How many facts wait for the node."""
        return self.figures().pending

    @property
    def oldest_at(self) -> float | None:
        """Since when the first of them waits, in Unix seconds; None when none does."""
        return self._spool.oldest_at()

    @property
    def size(self) -> int:
        """The bytes of everything in the spool, files and refused facts included."""
        figures = self.figures()
        return figures.pending_bytes + figures.refused_bytes

    def figures(self) -> Figures:
        """All of it at once."""
        return self._spool.figures()

    # ---- the end ----

    def close(self) -> None:
        """Stop and let go of the file; what is in it stays. Closing twice is fine."""
        self.stop()
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside ----

    def _sender(self) -> FactSender:
        if self._producer is None:
            raise WiringError("this outbox has no producer", remedy="give it one to drain it")
        return self._producer

    def _validated(self, envelope: Any, fact: Any) -> NewFact:
        valid = validate_fact(
            envelope, fact, self._limits, strict_ids=self._strict_ids, clock=self._clock
        )
        for warning in valid.warnings:
            logger.warning("fact %s: %s", valid.new_fact.message_id, warning)
        return valid.new_fact

    def _run(self) -> None:
        """The background: only its end ends it."""
        while not self._ending.is_set():
            pause = self.rule.poll
            try:
                self.drain(self._ending)
            except Exception as error:
                self.last_error = error
                log = logger.error if isinstance(error, ErgonError | OSError) else logger.exception
                log("the outbox cannot be drained for now: %s", describe(error))
                # Whatever it was, it is likely to be still so: a defect in a loop must not use up a
                # processor.
                pause = self.rule.backoff.cap
            self._ending.wait(pause)


class _Reporter(DrainObserver):
    """Says once that the node is away and once that it is back, and each refusal."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def failed(self, error: Exception) -> None:
        if self._outbox.last_error is None:
            logger.warning("facts wait in the outbox: %s", describe(error))
        self._outbox.last_error = error

    def answered(self) -> None:
        if self._outbox.last_error is not None:
            logger.info("the outbox is drained again")
        self._outbox.last_error = None

    def refused(self, spooled: OutboxItem, error: BoundaryError) -> None:
        logger.error("fact %d of the outbox was refused: %s", spooled.seq, describe(error))


def _single_attempt_producer(producer: Any) -> Any:
    """The producer for single attempts, so that its attempts and ours do not multiply."""
    once: Callable[[], Any] | None = getattr(producer, "once", None)
    return producer if once is None else once()
