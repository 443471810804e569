from __future__ import annotations

import hashlib
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.artifacts import Artifact
from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.client.publish_effects import FactWarning, Publication
from ergon_framework.boundary.model import Fact, ObjectReceipt, Receipt
from ergon_framework.core.retry import Backoff, RetryRule
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BufferFullError,
    ConfigurationError,
    ConflictingDuplicateError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
)
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.client.scripted import (
    ENVELOPE,
    FACT,
    Colour,
    HungTransport,
    MemoryNode,
    ScriptedTransport,
    envelope,
    fact,
    produce,
    unavailable,
)

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
OK = b'{"offset":42,"duplicate":false,"digest":"sha256:00"}'


def put_answer(body: bytes) -> bytes:
    """What a node answers that has stored these bytes."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return json.dumps({"bucket": "b", "key": "k", "digest": digest, "size": len(body)}).encode()


@BOTH
@pytest.mark.req("P5", "BSFG:Retry")
def test_schedule(colour: Colour) -> None:
    """The first retry comes at once, the next after 100 and 200 ms; then the error is raised."""
    last = unavailable()
    transport = ScriptedTransport(
        VirtualClock(), [unavailable(), unavailable(), unavailable(), last]
    )
    with pytest.raises(NodeUnavailableError) as caught:
        produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert caught.value is last
    assert transport.times == [0.0, 0.0, 0.1, 0.3]


@BOTH
@pytest.mark.req("P4", "BSFG:Retry", "BSFG:RetrySafety")
def test_attempts_are_the_same_bytes(colour: Colour) -> None:
    """Every attempt sends the very same request, with the id and the content of the first."""
    lost = NodeUnavailableError("?", code="deadline_exceeded", reason="timeout")
    transport = ScriptedTransport(VirtualClock(), [lost, lost, lost, OK])
    receipt = produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert receipt == Receipt(offset=42, digest="sha256:00")
    assert len({body for _, _, body in transport.calls}) == 1
    sent = json.loads(transport.calls[0][2])
    assert sent == {"envelope": ENVELOPE, "fact": FACT}


@BOTH
@pytest.mark.req("P5", "BSFG:Errors")
@pytest.mark.parametrize(
    "error",
    [
        FactInvalidError("no"),
        ConflictingDuplicateError("no"),
        NotPermittedError("no"),
        NotPermittedError("no", code="unauthenticated", reason="tls"),
        ArtifactError("no"),
        BoundaryError("no", code="internal"),
    ],
    ids=lambda error: error.code,
)
def test_refusals_are_not_retried(colour: Colour, error: BoundaryError) -> None:
    """What the node refuses for good is raised after the first attempt."""
    transport = ScriptedTransport(VirtualClock(), [error, OK])
    with pytest.raises(BoundaryError) as caught:
        produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert caught.value is error
    assert len(transport.calls) == 1


@BOTH
@pytest.mark.req("P5")
@pytest.mark.parametrize(
    "act",
    [
        lambda p: p.append_fact(ENVELOPE, FACT),
        lambda p: p.append_facts([(ENVELOPE, FACT)]),
        lambda p: p.put_object("b", "k", b"bytes"),
        lambda p: p.lookup_fact("a", "m"),
        lambda p: p.publish(FACT, [b"bytes"], envelope=ENVELOPE),
    ],
    ids=["append_fact", "append_facts", "put_object", "lookup_fact", "publish"],
)
def test_the_timeout_bounds_the_whole_call(colour: Colour, act: Any) -> None:
    """A node that hangs costs the timeout once, not once for each attempt."""
    transport = HungTransport(2.0)
    with pytest.raises(NodeUnavailableError):
        produce(colour, transport, act, timeout=2.0)
    assert transport.clock.now() == pytest.approx(2.0)


@BOTH
def test_a_deadline_beyond_the_timeout(colour: Colour) -> None:
    """Who wants several attempts at a node that hangs says how long all of them may take."""
    transport = HungTransport(2.0)
    with pytest.raises(NodeUnavailableError):
        produce(
            colour, transport, lambda p: p.append_fact(ENVELOPE, FACT), timeout=2.0, deadline=5.0
        )
    assert transport.clock.now() == pytest.approx(5.0)


@BOTH
def test_an_upload_that_broke_after_long_is_tried_again(colour: Colour) -> None:
    """The timeout of a blob counts silence: bytes that flowed for minutes do not use it up."""

    def broken(_body: bytes) -> bytes:
        transport.clock.advance(600.0)
        raise unavailable()

    transport = ScriptedTransport(VirtualClock(), [broken, put_answer])
    receipt = produce(colour, transport, lambda p: p.put_object("b", "k", b"bytes"), timeout=2.0)
    assert receipt.size == 5


@BOTH
@pytest.mark.req("P5")
def test_asked_to_wait(colour: Colour) -> None:
    """A node that says when to come back is not asked earlier, up to a limit."""
    full = BufferFullError("full", retry_after=2.5)
    never = BufferFullError("full", retry_after=86_400.0)
    transport = ScriptedTransport(VirtualClock(), [full, never, OK])
    produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
    assert transport.times == [0.0, 1.0, 2.0]


@BOTH
@pytest.mark.req("P5")
def test_deadline(colour: Colour) -> None:
    """A wait that would outlast the deadline of the whole call is not begun."""
    transport = ScriptedTransport(VirtualClock(), [unavailable() for _ in range(4)])
    with pytest.raises(NodeUnavailableError):
        produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT), deadline=0.2)
    assert transport.times == [0.0, 0.0, 0.1]


@BOTH
@pytest.mark.req("P5")
def test_full_jitter(colour: Colour) -> None:
    """With full jitter each wait is a random part of the schedule's."""
    transport = ScriptedTransport(VirtualClock(), [unavailable(), unavailable(), unavailable(), OK])
    act = lambda p: p.append_fact(ENVELOPE, FACT)  # noqa: E731
    produce(colour, transport, act, jitter="full", dice=lambda: 0.25)
    assert transport.times == [0.0, 0.0, 0.025, 0.075]


@BOTH
def test_another_schedule_and_none(colour: Colour) -> None:
    """A rule of one's own replaces the schedule, and once() makes a single attempt."""
    rule = RetryRule(attempts=2, backoff=Backoff(base=7.0))
    transport = ScriptedTransport(VirtualClock(), [unavailable()] * 5)
    for act in (
        lambda p: p.append_fact(ENVELOPE, FACT),
        lambda p: p.once().append_fact(ENVELOPE, FACT),
    ):
        with pytest.raises(NodeUnavailableError):
            produce(colour, transport, act, retry=rule)
    assert transport.times == [0.0, 7.0, 7.0]


@BOTH
@pytest.mark.req("P3", "BOUNDARY:badinput")
def test_invalid_facts_are_not_sent(colour: Colour) -> None:
    """What the node would refuse by field is refused here, with the path of the field."""
    transport = ScriptedTransport(VirtualClock())
    bad = {**FACT, "predicate": "Has Attachment"}
    with pytest.raises(FactInvalidError) as caught:
        produce(colour, transport, lambda p: p.append_fact(ENVELOPE, bad))
    assert caught.value.details["field"] == "fact.predicate"
    assert transport.calls == []


@BOTH
@pytest.mark.req("P10", "BSFG:Ids")
def test_unstable_ids(colour: Colour) -> None:
    """A random id is warned about, and refused in strict mode before anything is sent."""
    random_id = {**ENVELOPE, "message_id": "7b1de9a0-35c8-4a6e-8d8c-0f3a3bb0e1c2"}
    transport = ScriptedTransport(VirtualClock(), [OK])
    with pytest.warns(FactWarning, match="random UUID"):
        produce(colour, transport, lambda p: p.append_fact(random_id, FACT))
    with pytest.raises(FactInvalidError):
        produce(colour, transport, lambda p: p.append_fact(random_id, FACT), strict_ids=True)
    assert len(transport.calls) == 1


@BOTH
def test_batch(colour: Colour) -> None:
    """A batch answers in order, an error in its place, whether the node or the edge refused."""
    results = {
        "results": [
            {"offset": 1, "duplicate": False, "digest": "d"},
            {
                "error": {
                    "code": "already_exists",
                    "message": "other",
                    "details": {"reason": "conflicting_duplicate", "offset": 7},
                }
            },
        ]
    }
    transport = ScriptedTransport(VirtualClock(), [unavailable(), json.dumps(results).encode()])
    bad = Fact(subject="nonsense", predicate="x")
    items = [(envelope(1), fact(1)), (envelope(2), bad), (envelope(3), fact(3))]
    first, second, third = produce(colour, transport, lambda p: p.append_facts(items))
    assert first == Receipt(offset=1, digest="d")
    assert isinstance(second, FactInvalidError)
    assert isinstance(third, ConflictingDuplicateError)
    assert third.details == {"offset": 7}
    assert len(json.loads(transport.calls[1][2])["items"]) == 2
    assert transport.calls[0][2] == transport.calls[1][2]


@BOTH
def test_large_batch_is_split(colour: Colour) -> None:
    """More facts than one call takes go in several, in order."""

    def receipts(body: bytes) -> bytes:
        items = json.loads(body)["items"]
        numbers = [item["fact"]["object_json"]["n"] for item in items]
        return json.dumps({"results": [{"offset": n} for n in numbers]}).encode()

    transport = ScriptedTransport(VirtualClock(), [receipts, receipts, receipts])
    items = [(envelope(n), fact(n)) for n in range(1, 1002)]
    answers = produce(colour, transport, lambda p: p.append_facts(items))
    assert [each.offset for each in answers] == list(range(1, 1002))
    assert len(transport.calls) == 3


@BOTH
@pytest.mark.req("P14", "BSFG:Errors")
def test_after_a_crash(colour: Colour) -> None:
    """Whoever restarts finds the id, or does not and appends; both ways end in one fact."""
    node = MemoryNode(VirtualClock())
    node.lost["AppendFact"] = 1  # the reply is lost, and with it the process
    first = lambda p: p.once().append_fact(envelope(1), fact(1))  # noqa: E731
    with pytest.raises(NodeUnavailableError):
        produce(colour, node, first)
    found = produce(colour, node, lambda p: p.lookup_fact("a", envelope(1).message_id))
    assert found.offset == 1
    assert produce(colour, node, lambda p: p.lookup_fact("a", "never")) is None
    again = produce(colour, node, lambda p: p.append_fact(envelope(1), fact(1)))
    assert (again.offset, again.duplicate) == (1, True)
    assert node.store.logs()[0].head == 1


# ---- artifacts ----


@BOTH
@pytest.mark.req("P1", "BSFG:Sequence", "BSFG:Artifact")
def test_publish_sequence(colour: Colour, tmp_path: Path) -> None:
    """The artifact goes first, and the fact refers to it by the digest that was answered."""
    path = tmp_path / "batch_order.pdf"
    path.write_bytes(b"%PDF")
    digest = hashlib.sha256(b"%PDF").hexdigest()

    def named(body: bytes) -> bytes:
        shape = {"bucket": "work-order-files", "key": f"{digest[:16]}/batch_order.pdf"}
        return json.dumps({**json.loads(put_answer(body)), **shape}).encode()

    transport = ScriptedTransport(VirtualClock(), [named, OK])
    bare = {"subject": "work_order:WO-2026-001", "predicate": "has_batch_attachment"}
    produce(
        colour,
        transport,
        lambda p: p.publish(bare, [path], message_id="WO:1:attached", labels={"priority": "high"}),
        from_zone="Plant A",
        to_zone="Enterprise",
        clock=lambda: 1741248600.0,
    )
    assert transport.methods == [
        f"PUT work-order-files/{digest[:16]}/batch_order.pdf".partition("/")[2],
        "AppendFact",
    ]
    sent = json.loads(transport.calls[1][2])
    assert sent["envelope"] == {
        "message_id": "WO:1:attached",
        "from_zone": "Plant A",
        "to_zone": "Enterprise",
        "produced_at_unix_ms": 1741248600000,
        "labels": {"priority": "high"},
    }
    assert sent["fact"]["object_json"] == {
        "bucket": "work-order-files",
        "key": f"{digest[:16]}/batch_order.pdf",
        "digest": f"sha256:{digest}",
        "size": 4,
        "media_type": "application/pdf",
        "file_name": "batch_order.pdf",
    }


@BOTH
@pytest.mark.req("P2", "BSFG:ArtifactObligations", "BSFG:Errors")
def test_put_is_retried_and_then_the_fact_goes(colour: Colour) -> None:
    """A put that fails three times is repeated with the same bytes; one object, one fact."""
    transport = ScriptedTransport(
        VirtualClock(), [unavailable(), unavailable(), unavailable(), put_answer, OK]
    )
    files = [Artifact(b"blob", bucket="b", key="k")]
    produce(colour, transport, lambda p: p.publish(FACT, files, envelope=ENVELOPE))
    assert transport.times == [0.0, 0.0, 0.1, 0.3, 0.3]
    assert [body for _, _, body in transport.calls[:4]] == [b"blob"] * 4
    assert transport.methods[4] == "AppendFact"
    sent = json.loads(transport.calls[4][2])["fact"]["object_json"]
    assert sent["n"] == 1
    assert [each["key"] for each in sent["attachments"]] == ["k"]


@BOTH
@pytest.mark.req("P1", "P2", "BSFG:ArtifactObligations")
def test_failed_put_means_no_fact(colour: Colour) -> None:
    """When the artifact cannot be put, nothing is appended."""
    transport = ScriptedTransport(VirtualClock(), [unavailable()] * 4)
    with pytest.raises(NodeUnavailableError):
        produce(colour, transport, lambda p: p.publish(FACT, [b"blob"], envelope=ENVELOPE))
    assert "AppendFact" not in transport.methods
    assert len(transport.calls) == 4


@BOTH
@pytest.mark.req("P1")
def test_wrong_acknowledgement_means_no_fact(colour: Colour) -> None:
    """An acknowledgement of other bytes than were sent stops the sequence."""
    other = b'{"bucket":"b","key":"k","digest":"sha256:00","size":4}'
    transport = ScriptedTransport(VirtualClock(), [other])
    with pytest.raises(DataLossError):
        produce(colour, transport, lambda p: p.publish(FACT, [b"blob"], envelope=ENVELOPE))


@pytest.mark.req("P1")
def test_fact_is_not_ready_before_its_artifacts() -> None:
    """The state machine gives no fact out as long as an artifact is not acknowledged."""
    publication = Publication(Fact(subject="a:b", predicate="c"), [Artifact(b"1"), Artifact(b"2")])
    receipt = ObjectReceipt(bucket="b", key="k", digest="sha256:00", size=1)
    publication.acknowledged(receipt)
    with pytest.raises(ArtifactError):
        publication.ready()
    publication.acknowledged(receipt)
    assert len(publication.ready().object_json["attachments"]) == 2


def publish(bad: Any, wrapping: Any, producer: Any) -> Any:
    """Publish with a file."""
    return producer.publish(bad, [b"blob"], envelope=wrapping)


@BOTH
def test_invalid_fact_puts_nothing(colour: Colour) -> None:
    """A fact that would be refused is refused before its artifact is sent."""
    transport = ScriptedTransport(VirtualClock())
    for bad, wrapping in (
        ({**FACT, "subject": "no"}, ENVELOPE),
        (FACT, {**ENVELOPE, "to_zone": ""}),
        ({**FACT, "object_json": [1]}, ENVELOPE),
        ({**FACT, "object_json": {"attachments": []}}, ENVELOPE),
        ({"subject": "a:b"}, ENVELOPE),
    ):
        with pytest.raises(FactInvalidError):
            produce(colour, transport, partial(publish, bad, wrapping))
    with pytest.raises(FactInvalidError, match="message_id"):
        produce(colour, transport, lambda p: p.publish(FACT, from_zone="a", to_zone="b"))
    with pytest.raises(ConfigurationError, match="one or the other"):
        produce(colour, transport, lambda p: p.publish(FACT, envelope=ENVELOPE, message_id="x"))
    assert transport.calls == []


class Pipe(io.RawIOBase):
    """A file that cannot go back."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(size)


def put(blob: Any, producer: Any) -> Any:
    """Put it."""
    return producer.put_object("b", "k", blob)


class Letters:
    """Something to read that gives text."""

    def seekable(self) -> bool:
        return False

    def read(self, _size: int) -> str:
        return "text"


@BOTH
@pytest.mark.req("BOUNDARY:badinput")
def test_what_cannot_be_sent_is_refused_in_words(colour: Colour) -> None:
    """Text in place of bytes, and half a character in a name: nothing of it goes anywhere."""
    transport = ScriptedTransport(VirtualClock(), [])
    blobs: list[Any] = [io.StringIO("text"), Letters()]
    for blob in blobs:
        with pytest.raises(ConfigurationError, match="does not give bytes"):
            produce(colour, transport, partial(put, blob))
    assert produce(colour, transport, lambda p: p.lookup_fact("a", "\ud800")) is None
    assert transport.calls == []


@BOTH
@pytest.mark.req("P2")
@pytest.mark.parametrize("kind", ["bytes", "path", "file", "pipe"])
def test_blobs_can_be_sent_again(colour: Colour, kind: str, tmp_path: Path) -> None:
    """Whatever a blob is read from, a retry sends all of it again."""
    data = bytes(range(256)) * 5000
    path = tmp_path / "blob"
    path.write_bytes(b"xx" + data if kind == "file" else data)
    blob: Any
    with open(path, "rb") as file:
        file.seek(2)
        blob = {"bytes": data, "path": path, "file": file, "pipe": Pipe(data)}[kind]
        transport = ScriptedTransport(VirtualClock(), [unavailable(), put_answer])
        receipt = produce(colour, transport, lambda p: p.put_object("b", "k", blob))
    assert receipt.size == len(data)
    assert [body for _, _, body in transport.calls] == [data, data]


@BOTH
def test_progress(colour: Colour) -> None:
    """Whoever asks is told how much of which file has gone, from the start again on a retry."""
    seen: list[tuple[str, int, int]] = []
    transport = ScriptedTransport(VirtualClock(), [unavailable(), put_answer, OK])
    files = [Artifact(b"blob", file_name="a.txt", bucket="b", key="k")]
    produce(
        colour,
        transport,
        lambda p: p.publish(
            FACT, files, envelope=ENVELOPE, progress=lambda *args: seen.append(args)
        ),
    )
    assert seen == [("a.txt", 0, 4), ("a.txt", 4, 4)] * 2


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """A bar is drawn when asked for, on the stream for people, and none without a terminal."""
    for progress, is_seen in ((True, True), (None, False)):
        transport = ScriptedTransport(VirtualClock(), [put_answer, OK])
        files = [Artifact(bytes(9 << 20), file_name="large.bin", bucket="b", key="k")]
        with transport.clock, Producer(transport) as producer:
            producer.publish(FACT, files, envelope=ENVELOPE, progress=progress)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("large.bin" in err) is is_seen


def test_unknown_options() -> None:
    """A misspelled option is refused instead of being lost."""
    with pytest.raises(ConfigurationError, match="from_zon"):
        Producer("http://127.0.0.1:1", from_zon="a")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="jitter"):
        Producer("http://127.0.0.1:1", jitter="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="belong together"):
        Producer("https://127.0.0.1:1", cert="a.pem")


@BOTH
def test_answers_that_make_no_sense(colour: Colour) -> None:
    """An answer that is no receipt is an error, and says nothing of the payload."""
    for answer in (b"[]", b'{"offset":"x"}', b"<html>", b"\xff"):
        transport = ScriptedTransport(VirtualClock(), [answer])
        with pytest.raises(BoundaryError) as caught:
            produce(colour, transport, lambda p: p.append_fact(ENVELOPE, FACT))
        assert caught.value.reason == "bad_answer"


@pytest.mark.parametrize("blob", ["missing.txt", ".", 7])
def test_unreadable_blobs(blob: Any) -> None:
    """A file that is not there is named before anything is sent."""
    transport = ScriptedTransport(VirtualClock())
    with pytest.raises(ConfigurationError):
        produce("threads", transport, lambda p: p.publish(FACT, [blob], envelope=ENVELOPE))
    assert transport.calls == []
