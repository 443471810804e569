"""One stream: messages by subject, and commits that succeed only where nobody was faster.

A commit of one message is published as it is; one of several is an atomic batch. Both carry the
sequence that the stream must end at. A batch that a dying server stored in part is undone by
whoever comes next: whoever writes keeps the message before, which counts again then.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.nats.faults import NO_STREAM, WRONG_SEQUENCE
from ergon_framework.storage.nats.instants import instant
from ergon_framework.storage.nats.line import Reply, Sendable, is_lost
from ergon_framework.storage.nats.reading import Reading

MOST_MESSAGES = 1000
"""Of one batch: the server takes no more."""
_EXPECTED = "Nats-Expected-Last-Sequence"
_EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
_COMMIT_ID = "Ergon-Commit"
_BATCH = "Nats-Batch-Id"
_NUMBER = "Nats-Batch-Sequence"
_LAST = "Nats-Batch-Commit"


class OvertakenError(Exception):
    """Somebody else has written meanwhile; nothing of the commit was."""


@dataclass(frozen=True, slots=True)
class Message:
    """On its way into the stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a stream has come, and what time it is there."""

    last: int
    now: float
    config: Mapping[str, Any]


class NatsStream(Reading):
    """A stream on a line. Any thread may call any method."""

    # ---- the stream itself ----------------------------------------------------------------------

    def standing(self) -> Standing | None:
        """How it stands; None when there is no such stream."""
        answer = self._api(f"STREAM.INFO.{self.name}")
        error = answer.get("error")
        if error and error.get("err_code") == NO_STREAM:
            return None
        answer = self._checked(answer)
        last, config = answer["state"]["last_seq"], answer["config"]
        self._floor, self.is_replicated = last, int(config["num_replicas"]) > 1
        return Standing(last, instant(answer["ts"]), config)

    def create(self, config: Mapping[str, Any]) -> None:
        """Make it; the same again is fine."""
        self._checked(self._api(f"STREAM.CREATE.{self.name}", {"name": self.name, **config}))

    def change(self, config: Mapping[str, Any]) -> None:
        """Give it another configuration."""
        self._checked(self._api(f"STREAM.UPDATE.{self.name}", {"name": self.name, **config}))

    def delete(self, seq: int) -> None:
        """Remove one message; one that is gone is fine."""
        self._api(f"STREAM.MSG.DELETE.{self.name}", {"seq": seq, "no_erase": True})

    def purge(self, subject: str, below: int) -> None:
        """Remove what matches and lies below a sequence."""
        self._checked(self._api(f"STREAM.PURGE.{self.name}", {"filter": subject, "seq": below}))

    def trim(self, subject: str, keep: int) -> None:
        """Remove all messages of a subject but the newest ones."""
        self._checked(self._api(f"STREAM.PURGE.{self.name}", {"filter": subject, "keep": keep}))

    # ---- writing --------------------------------------------------------------------------------

    def commit(self, messages: Sequence[Message], expected: int | None) -> int:
        """Write messages at once, or none of them; the sequence of the last one.

        ``expected`` is where the stream must end; None when the messages themselves say what they
        expect. A commit whose answer was lost is looked for before anything is said about it.
        """
        commit_id = secrets.token_hex(8)
        failpoint("nats.commit.before")
        try:
            reply = self.line.send(_sendable(messages, expected, commit_id))
        except StoreUnavailableError as error:
            if not is_lost(error):
                raise
            with suppress(StoreUnavailableError):
                found = self._found(commit_id, messages, expected)
                if found is not None:
                    return found
            raise
        failpoint("nats.commit.after")
        return self._acknowledged(reply)

    def _acknowledged(self, reply: Reply) -> int:
        """The sequence that the server says a commit ends at."""
        if reply.status:
            raise self._trouble(reply)
        answer = json.loads(reply.data)
        trouble = answer.get("error")
        if trouble and trouble.get("err_code") == WRONG_SEQUENCE:
            raise OvertakenError
        seq: int = self._checked(answer)["seq"]
        self._floor = max(self._floor, seq)
        return seq

    def _found(
        self, commit_id: str, messages: Sequence[Message], expected: int | None
    ) -> int | None:
        """Where a commit lies whose answer was lost; None when it may still not be there."""
        place = None if expected is None else expected + len(messages)
        there = self.last(messages[-1].subject) if place is None else self.at(place)
        if there is not None and there.headers.get(_COMMIT_ID) == commit_id:
            return there.seq
        return None

    def undo_torn(self, subjects: str, fence: str) -> int:
        """Remove what a server left of a batch when it died within; how many messages.

        First a message is put behind it, which succeeds only when the batch is not just on its way
        in. It says what to remove, for whoever comes next in case this process dies.
        """
        standing = self.standing()
        newest = None if standing is None else self.at(standing.last) or self.last(subjects)
        is_torn = newest is not None and _BATCH in newest.headers and _LAST not in newest.headers
        if standing is not None and newest is not None and is_torn:
            first = newest.seq - int(newest.headers[_NUMBER]) + 1
            self.commit([Message(fence, f"{first} {newest.seq}".encode())], standing.last)
        found = self.last(fence)
        if found is None or not found.data:
            return 0
        first, through = (int(each) for each in found.data.split())
        for seq in range(first, through + 1):
            self.delete(seq)
        with suppress(OvertakenError):
            self.commit([Message(fence, b"", {_EXPECTED_SUBJECT: str(found.seq)})], None)
        return through - first + 1


def _sendable(messages: Sequence[Message], expected: int | None, commit_id: str) -> list[Sendable]:
    """The messages with the headers of one commit."""
    sent: list[Sendable] = []
    for number, message in enumerate(messages, 1):
        headers = dict(message.headers)
        if number == 1 and expected is not None:
            headers[_EXPECTED] = str(expected)
        if len(messages) > 1:
            headers |= {_BATCH: commit_id, _NUMBER: str(number)}
        if number == len(messages):
            headers[_COMMIT_ID] = commit_id
            if len(messages) > 1:
                headers[_LAST] = "1"
        sent.append((message.subject, message.data, headers))
    return sent
