"""One stream of a NATS server: commits that succeed if nobody else has written, and reading."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.conflicts import ConflictError
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.nats.client import NatsClient, NatsReply, Sendable, is_lost
from ergon_framework.storage.nats.errors import (
    NO_MESSAGE,
    NO_STREAM,
    WRONG_SEQUENCE,
    translate,
    unanswered,
)


def instant(text: str) -> float:
    """Unix seconds, of a text with nanoseconds that Python cannot read."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")


MAX_BYTES = 8 << 20
"""The most bytes in one answer, about."""
MAX_LATEST = 1000
"""The most subjects in one request, and messages in one answer."""
_MAX_READS = 200
_HEADER_LINE = b"NATS/1.0\r\n"


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in the stream."""

    subject: str
    seq: int
    data: bytes
    headers: Mapping[str, str]
    pending: int = 0
    """How many messages that match come after it."""


MAX_MESSAGES = 1000
"""The most messages in one batch: the server takes no more."""
_EXPECTED = "Nats-Expected-Last-Sequence"
_EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
_COMMIT_ID = "Ergon-Commit"
_BATCH = "Nats-Batch-Id"
_NUMBER = "Nats-Batch-Sequence"
_LAST = "Nats-Batch-Commit"


class OvertakenError(ConflictError):
    """Another client has written meanwhile; nothing of the commit was written."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message to be written to the stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamState:
    """The last sequence of a stream, and the server's time."""

    last: int
    now: float
    config: Mapping[str, Any]


class NatsStream:
    """One stream on one server. Any thread may call any method."""

    def __init__(self, client: NatsClient, name: str, sentinel: str) -> None:
        self.client = client
        self.name = name
        self.is_replicated = False
        """Whether several servers keep it."""
        self._direct = f"$JS.API.DIRECT.GET.{name}"
        self._sentinel = sentinel
        """A subject that always has a message: an answer without any does not say how old it is."""
        self._floor = 0
        """Where the stream is known to have ended."""

    # ---- the stream itself ----------------------------------------------------------------------

    def state(self) -> StreamState | None:
        """The state of the stream; None if there is no such stream."""
        answer = self._api(f"STREAM.INFO.{self.name}")
        error = answer.get("error")
        if error and error.get("err_code") == NO_STREAM:
            return None
        answer = self._checked(answer)
        last, config = answer["state"]["last_seq"], answer["config"]
        # A replica that lags may answer later reads; nothing older than this counts as an answer.
        self._floor, self.is_replicated = last, int(config["num_replicas"]) > 1
        return StreamState(last, instant(answer["ts"]), config)

    def create(self, config: Mapping[str, Any]) -> None:
        """Make it; the same again is fine."""
        self._checked(self._api(f"STREAM.CREATE.{self.name}", {"name": self.name, **config}))

    def change(self, config: Mapping[str, Any]) -> None:
        """Change the configuration of the stream."""
        self._checked(self._api(f"STREAM.UPDATE.{self.name}", {"name": self.name, **config}))

    def delete(self, seq: int) -> None:
        """Remove one message, if it is there."""
        # Not erased: overwriting the message would cost the server a write of its whole size.
        self._api(f"STREAM.MSG.DELETE.{self.name}", {"seq": seq, "no_erase": True})

    def purge(self, subject: str, below: int) -> None:
        """Remove messages of a subject below a sequence number."""
        self._checked(self._api(f"STREAM.PURGE.{self.name}", {"filter": subject, "seq": below}))

    def trim(self, subject: str, keep: int) -> None:
        """Remove all messages of a subject but the newest ones."""
        self._checked(self._api(f"STREAM.PURGE.{self.name}", {"filter": subject, "keep": keep}))

    # ---- writing --------------------------------------------------------------------------------

    def commit(self, messages: Sequence[StreamMessage], expected: int | None) -> int:
        """Write messages at once, or none of them; the sequence of the last one.

        ``expected`` is where the stream must end; None when the messages themselves say what they
        expect. After a lost answer, the stream is searched for the commit before its outcome is
        reported.
        """
        # In the last message, so that a commit whose answer was lost can be recognised.
        commit_id = secrets.token_hex(8)
        failpoint("nats.commit.before")
        try:
            reply = self.client.send(_sendable(messages, expected, commit_id))
        except StoreUnavailableError as error:
            if not is_lost(error):
                raise
            # When it cannot be asked either, the first error stands: whether it was written is not
            # known.
            with suppress(StoreUnavailableError):
                found = self._found(commit_id, messages, expected)
                if found is not None:
                    return found
            raise
        failpoint("nats.commit.after")
        return self._acknowledged(reply)

    def _acknowledged(self, reply: NatsReply) -> int:
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
        self, commit_id: str, messages: Sequence[StreamMessage], expected: int | None
    ) -> int | None:
        """Where a commit lies whose answer was lost; None when it may still not be there."""
        # With an expected end, the commit can lie in one place only.
        place = None if expected is None else expected + len(messages)
        there = self.last(messages[-1].subject) if place is None else self.at(place)
        if there is not None and there.headers.get(_COMMIT_ID) == commit_id:
            return there.seq
        return None

    def undo_torn(self, subjects: str, fence: str) -> int:
        """Remove the part of a batch that a server wrote before it died; how many messages.

        First a message is put behind it, which succeeds only when the batch is not just on its way
        in. That message says what to remove, so that the next process can finish should this one
        die.
        """
        standing = self.state()
        newest = None if standing is None else self.at(standing.last) or self.last(subjects)
        # A batch whose last message lacks the mark of a commit: the server died while it stored it.
        is_torn = newest is not None and _BATCH in newest.headers and _LAST not in newest.headers
        if standing is not None and newest is not None and is_torn:
            first = newest.seq - int(newest.headers[_NUMBER]) + 1
            self.commit([StreamMessage(fence, f"{first} {newest.seq}".encode())], standing.last)
        found = self.last(fence)
        if found is None or not found.data:
            return 0
        first, through = (int(each) for each in found.data.split())
        for seq in range(first, through + 1):
            self.delete(seq)
        # Overtaken: another process did the same, and has cleared the fence.
        with suppress(OvertakenError):
            self.commit([StreamMessage(fence, b"", {_EXPECTED_SUBJECT: str(found.seq)})], None)
        return through - first + 1

    # ---- reading --------------------------------------------------------------------------------

    def at(self, seq: int) -> Stored | None:
        """The message of a sequence."""
        return self._one({"seq": seq}) if seq else None

    def at_each(self, seqs: Sequence[int]) -> list[Stored | None]:
        """The messages of several sequences; None for those that are gone."""
        # On several servers a direct read may be answered by one that lags; single reads go to the
        # leader.
        if self.is_replicated:
            return [self.at(seq) for seq in seqs]
        wanted = [seq for seq in seqs if seq]
        asked = [(self._direct, _json({"seq": seq}), None) for seq in wanted]
        replies = self.client.send_each(asked) if asked else []
        found = {seq: self._found_one(reply) for seq, reply in zip(wanted, replies, strict=True)}
        return [found.get(seq) for seq in seqs]

    def has_few(self, subject: str) -> bool:
        """Whether one answer can hold the newest message of each subject that matches."""
        replies = self._ask_many({"multi_last": [subject], "batch": 1})
        return replies[-1].status != "413"

    def last(self, subject: str) -> Stored | None:
        """The newest message that matches."""
        return self._one({"last_by_subj": subject})

    def next(self, subject: str, seq: int) -> Stored | None:
        """The first message that matches, from a sequence on."""
        return self._one({"seq": max(seq, 1), "next_by_subj": subject})

    def latest(self, subjects: Sequence[str]) -> list[Stored]:
        """The newest message of each subject that matches one of these."""
        most = MAX_LATEST - 1
        parts = [subjects[start : start + most] for start in range(0, len(subjects), most)]
        return [each for part in parts for each in self._latest(part)]

    def _latest(self, subjects: Sequence[str]) -> list[Stored]:
        # An answer without a message does not say how old it is; the sentinel makes sure that there
        # is one.
        more = [self._sentinel] if self.is_replicated and self._sentinel not in subjects else []
        for _ in range(_MAX_READS):
            replies = self._ask_many({"multi_last": [*subjects, *more], "batch": MAX_LATEST})
            end = replies[-1]
            if end.status == "413" or int(end.headers.get("Nats-Num-Pending", 0)):
                return self._walked(subjects)
            # 204 ends an answer, 404 says that nothing matches.
            if end.status not in {"204", "404"}:
                raise self._trouble(end)
            if not self.is_replicated or self._is_recent(end):
                found = [stored_of(each) for each in replies if not each.status]
                return [each for each in found if each.subject not in more]
        raise self._lagging()

    def following(
        self, subject: str, seq: int, limit: int, max_bytes: int = MAX_BYTES
    ) -> list[Stored]:
        """Messages of a subject from a sequence number on, in order; one at least, if any."""
        asked = {"seq": max(seq, 1), "next_by_subj": subject, "batch": limit}
        replies = self._ask_many({**asked, "max_bytes": min(max_bytes, MAX_BYTES)})
        end = replies[-1]
        if end.status not in {"204", "404"}:
            raise self._trouble(end)
        found = [stored_of(each) for each in replies if not each.status]
        is_cut = not found and end.status == "204"  # the first one is larger than all that
        if is_cut or (self.is_replicated and not int(end.headers.get("Nats-Num-Pending", 0))):
            one = self.next(subject, found[-1].seq + 1 if found else seq)
            found += [] if one is None or len(found) >= limit else [one]
        return found

    def walk(self, subject: str, seq: int = 1, limit: int = 500) -> Iterator[Stored]:
        """All that matches from a sequence on."""
        while found := self.following(subject, seq, limit):
            yield from found
            seq = found[-1].seq + 1

    def _walked(self, subjects: Sequence[str]) -> list[Stored]:
        """The newest of many subjects: more than fit into one answer."""
        newest: dict[str, Stored] = {}
        for subject in subjects:
            for each in self.walk(subject):
                newest[each.subject] = each
        return list(newest.values())

    # ---- asking ---------------------------------------------------------------------------------

    def _one(self, request: Mapping[str, Any]) -> Stored | None:
        if self.is_replicated:
            return self._one_of_leader(request)
        return self._found_one(self.client.request(self._direct, _json(request)))

    def _found_one(self, reply: NatsReply) -> Stored | None:
        if reply.status == "404":
            return None
        if reply.status:
            raise self._trouble(reply)
        return stored_of(reply)

    def _one_of_leader(self, request: Mapping[str, Any]) -> Stored | None:
        answer = self._api(f"STREAM.MSG.GET.{self.name}", request)
        if answer.get("error", {}).get("err_code") == NO_MESSAGE:
            return None
        found = self._checked(answer)["message"]
        raw = b64decode(found.get("hdrs", "")).removeprefix(_HEADER_LINE).decode()
        lines = (line.partition(":") for line in raw.split("\r\n") if line)
        headers = {key: value.strip() for key, _, value in lines}
        data = b64decode(found.get("data", ""))
        return Stored(found["subject"], found["seq"], data, headers)

    def _ask_many(self, request: Mapping[str, Any]) -> list[NatsReply]:
        return self.client.request_many(self._direct, _json(request))

    def _api(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        reply = self.client.request(f"$JS.API.{subject}", _json(request) if request else b"")
        if reply.status:
            raise self._trouble(reply)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise translate(self.client.address.name, answer["error"])
        return answer

    def _is_recent(self, end: NatsReply) -> bool:
        return int(end.headers.get("Nats-UpTo-Sequence", 0)) >= self._floor

    def _lagging(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"a server of {self.client.address.name} lags behind the others",
            remedy="see how its replicas stand: nats stream info",
        )

    def _trouble(self, reply: NatsReply) -> Exception:
        name = self.client.address.name
        if reply.status == "503":
            return unanswered(name)
        text = reply.headers.get("Description", f"status {reply.status}")
        return translate(name, {"description": text, "code": int(reply.status)})


def stored_of(reply: NatsReply) -> Stored:
    """The message of a stream that a reply carries."""
    headers = reply.headers
    pending = int(headers.get("Nats-Num-Pending", 0))
    seq = int(headers["Nats-Sequence"])
    return Stored(headers["Nats-Subject"], seq, reply.data, headers, pending)


def _json(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode()


def _sendable(
    messages: Sequence[StreamMessage], expected: int | None, commit_id: str
) -> list[Sendable]:
    """The messages with the headers of one commit."""
    sent: list[Sendable] = []
    for number, message in enumerate(messages, 1):
        headers = dict(message.headers)
        # The server checks the expectation at the first message, and the batch stands or falls with
        # it.
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
