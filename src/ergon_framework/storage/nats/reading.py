"""Reading a stream.

Where one server keeps it, that server answers. Where several do, any of them answers questions with
many answers, also one that lags behind: then it is asked again, and the leader in the end.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.nats.faults import NO_MESSAGE, translate, unanswered
from ergon_framework.storage.nats.line import Line, Reply

MOST_BYTES = 8 << 20
"""Of one answer, about."""
MOST_LATEST = 1000
"""Subjects of one question, and messages of one answer."""
_TRIES = 200
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


class Reading:
    """A stream that is read. Any thread may call any method."""

    def __init__(self, line: Line, name: str, sentinel: str) -> None:
        self.line = line
        self.name = name
        self.is_replicated = False
        """Whether several servers keep it."""
        self._direct = f"$JS.API.DIRECT.GET.{name}"
        self._sentinel = sentinel
        """A subject that always has a message: an answer without any does not say how old it is."""
        self._floor = 0
        """Where the stream is known to have ended."""

    def at(self, seq: int) -> Stored | None:
        """The message of a sequence."""
        return self._one({"seq": seq}) if seq else None

    def at_each(self, seqs: Sequence[int]) -> list[Stored | None]:
        """The messages of several sequences; None for those that are gone."""
        if self.is_replicated:
            return [self.at(seq) for seq in seqs]
        wanted = [seq for seq in seqs if seq]
        asked = [(self._direct, _json({"seq": seq}), None) for seq in wanted]
        replies = self.line.send_each(asked) if asked else []
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
        most = MOST_LATEST - 1
        parts = [subjects[start : start + most] for start in range(0, len(subjects), most)]
        return [each for part in parts for each in self._latest(part)]

    def _latest(self, subjects: Sequence[str]) -> list[Stored]:
        more = [self._sentinel] if self.is_replicated and self._sentinel not in subjects else []
        for _ in range(_TRIES):
            replies = self._ask_many({"multi_last": [*subjects, *more], "batch": MOST_LATEST})
            end = replies[-1]
            if end.status == "413" or int(end.headers.get("Nats-Num-Pending", 0)):
                return self._walked(subjects)
            if end.status not in {"204", "404"}:
                raise self._trouble(end)
            if not self.is_replicated or self._is_recent(end):
                found = [_stored(each) for each in replies if not each.status]
                return [each for each in found if each.subject not in more]
        raise self._lagging()

    def following(
        self, subject: str, seq: int, limit: int, max_bytes: int = MOST_BYTES
    ) -> list[Stored]:
        """What matches from a sequence on, in order; at least one if there is one."""
        asked = {"seq": max(seq, 1), "next_by_subj": subject, "batch": limit}
        replies = self._ask_many({**asked, "max_bytes": min(max_bytes, MOST_BYTES)})
        end = replies[-1]
        if end.status not in {"204", "404"}:
            raise self._trouble(end)
        found = [_stored(each) for each in replies if not each.status]
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
        return self._found_one(self.line.ask(self._direct, _json(request)))

    def _found_one(self, reply: Reply) -> Stored | None:
        if reply.status == "404":
            return None
        if reply.status:
            raise self._trouble(reply)
        return _stored(reply)

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

    def _ask_many(self, request: Mapping[str, Any]) -> list[Reply]:
        return self.line.ask_many(self._direct, _json(request))

    def _api(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        reply = self.line.ask(f"$JS.API.{subject}", _json(request) if request else b"")
        if reply.status:
            raise self._trouble(reply)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise translate(self.line.address.name, answer["error"])
        return answer

    def _is_recent(self, end: Reply) -> bool:
        return int(end.headers.get("Nats-UpTo-Sequence", 0)) >= self._floor

    def _lagging(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"a server of {self.line.address.name} lags behind the others",
            remedy="see how its replicas stand: nats stream info",
        )

    def _trouble(self, reply: Reply) -> Exception:
        name = self.line.address.name
        if reply.status == "503":
            return unanswered(name)
        text = reply.headers.get("Description", f"status {reply.status}")
        return translate(name, {"description": text, "code": int(reply.status)})


def _stored(reply: Reply) -> Stored:
    headers = reply.headers
    pending = int(headers.get("Nats-Num-Pending", 0))
    seq = int(headers["Nats-Sequence"])
    return Stored(headers["Nats-Subject"], seq, reply.data, headers, pending)


def _json(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode()
