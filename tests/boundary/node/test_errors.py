"""Every refusal of a node: its code, its status, its reason, and that nothing was stored."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.node.processes import (
    ADMIN,
    CORE,
    PATIENCE,
    Answer,
    NodeProcess,
    fact,
    running,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:badinput", "BOUNDARY:http")]

DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with three facts, an artifact one of them refers to, and a consumer."""
    with running("plant-a", tmp_path_factory.mktemp("zone") / "data") as node:
        _status, _headers, stored = node.request("PUT", "/v1/objects/files/there", b"bytes")
        node.append("seed:1:created", json.loads(stored))
        node.append("seed:2:created")
        node.append("seed:3:created")
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
        page = node.ask(f"{CORE}FetchFacts", {"consumer_name": "c", "limit": 2})
        assert len(page["facts"]) == 2
        yield node


def standing(node: NodeProcess) -> Any:
    """What no refusal may change."""
    status = node.ask(f"{ADMIN}GetStatus", {})
    keys = ("consumer_name", "cursor", "lag")
    consumers = [{key: each[key] for key in keys} for each in status["consumers"]]
    return status["logs"], consumers, status["quarantined"]


def message(part: str = "envelope", **changes: Any) -> dict[str, Any]:
    """A fact with some fields changed; None takes a field away."""
    body = fact("refused:1:created")
    for name, value in changes.items():
        if value is None:
            del body[part][name]
        else:
            body[part][name] = value
    return body


def raw(object_json: bytes) -> bytes:
    """A fact whose object is spelled in a given way."""
    whole = json.dumps(fact("refused:1:created", "HERE")).encode()
    return whole.replace(b'"HERE"', object_json)


def reference(key: str, **changes: Any) -> dict[str, Any]:
    """A fact that refers to an artifact."""
    told = {"bucket": "files", "key": key, "digest": DIGEST, "size": 5, **changes}
    return fact("refused:1:attached", told)


APPEND, PUT, FETCH, CONFIRM = (
    f"{CORE}{name}" for name in ("AppendFact", "PutObject", "FetchFacts", "ConfirmReceipt")
)
REFUSALS: list[tuple[str, str, Any, tuple[int, str, str | None]]] = [
    # AppendFact
    (
        "conflict",
        APPEND,
        fact("seed:2:created", 2),
        (409, "already_exists", "conflicting_duplicate"),
    ),
    ("no json", APPEND, b'{"envelope": ', (400, "invalid_argument", None)),
    ("no body", APPEND, b"", (400, "invalid_argument", None)),
    ("no object", APPEND, [], (400, "invalid_argument", None)),
    ("no utf-8", APPEND, b'{"envelope": "\xff"}', (400, "invalid_argument", None)),
    ("no envelope", APPEND, {"fact": {}}, (400, "invalid_argument", None)),
    ("unknown part", APPEND, {**message(), "more": 1}, (400, "invalid_argument", None)),
    ("unknown field", APPEND, message(more=1), (400, "invalid_argument", None)),
    ("no id", APPEND, message(message_id=None), (400, "invalid_argument", None)),
    ("id too long", APPEND, message(message_id="x" * 256), (400, "invalid_argument", None)),
    ("a control in a zone", APPEND, message(to_zone="a\nb"), (400, "invalid_argument", None)),
    ("time below zero", APPEND, message(produced_at_unix_ms=-1), (400, "invalid_argument", None)),
    (
        "time too large",
        APPEND,
        message(produced_at_unix_ms=1 << 63),
        (400, "invalid_argument", None),
    ),
    ("time is true", APPEND, message(produced_at_unix_ms=True), (400, "invalid_argument", None)),
    (
        "too many labels",
        APPEND,
        message(labels={f"k{n}": "v" for n in range(33)}),
        (400, "invalid_argument", None),
    ),
    ("subject", APPEND, message("fact", subject="Order:1"), (400, "invalid_argument", None)),
    ("predicate", APPEND, message("fact", predicate="has-file"), (400, "invalid_argument", None)),
    ("a name twice", APPEND, raw(b'{"a": 1, "a": 2}'), (400, "invalid_argument", None)),
    ("not a number", APPEND, raw(b"NaN"), (400, "invalid_argument", None)),
    ("infinity", APPEND, raw(b"1e999"), (400, "invalid_argument", None)),
    ("integer too large", APPEND, raw(b"9007199254740993"), (400, "invalid_argument", None)),
    ("half a surrogate", APPEND, raw(rb'"\ud800"'), (400, "invalid_argument", None)),
    ("very deep", APPEND, raw(b"[" * 5000 + b"]" * 5000), (400, "invalid_argument", None)),
    (
        "object too large",
        APPEND,
        fact("refused:1:created", "x" * 300_000),
        (400, "invalid_argument", "too_large"),
    ),
    (
        "artifact missing",
        APPEND,
        reference("gone"),
        (400, "failed_precondition", "artifact_missing"),
    ),
    ("other digest", APPEND, reference("there"), (400, "failed_precondition", "artifact_mismatch")),
    ("no digest", APPEND, reference("there", digest="md5:1"), (400, "invalid_argument", None)),
    ("negative size", APPEND, reference("there", size=-1), (400, "invalid_argument", None)),
    # PutObject
    (
        "object conflict",
        PUT,
        {"bucket": "files", "key": "there", "blob": "AAAA"},
        (409, "already_exists", "object_conflict"),
    ),
    (
        "no base64",
        PUT,
        {"bucket": "files", "key": "new", "blob": "%%"},
        (400, "invalid_argument", None),
    ),
    (
        "unexpected digest",
        PUT,
        {"bucket": "files", "key": "new", "blob": "AAAA", "expected_digest": DIGEST},
        (400, "invalid_argument", "digest_mismatch"),
    ),
    ("no bucket", PUT, {"key": "new", "blob": "AAAA"}, (400, "invalid_argument", "missing")),
    ("empty key", PUT, {"bucket": "files", "key": "", "blob": ""}, (400, "invalid_argument", None)),
    # FetchFacts
    ("unknown consumer", FETCH, {"consumer_name": "nobody"}, (404, "not_found", None)),
    ("no name", FETCH, {}, (400, "invalid_argument", "missing")),
    ("limit 0", FETCH, {"consumer_name": "c", "limit": 0}, (400, "invalid_argument", "range")),
    ("limit text", FETCH, {"consumer_name": "c", "limit": "x"}, (400, "invalid_argument", "type")),
    (
        "wait below 0",
        FETCH,
        {"consumer_name": "c", "wait_ms": -1},
        (400, "invalid_argument", "range"),
    ),
    (
        "limit out of this world",
        FETCH,
        {"consumer_name": "c", "limit": 1 << 70},
        (400, "invalid_argument", None),
    ),
    # ConfirmReceipt
    (
        "above what was served",
        CONFIRM,
        {"consumer_name": "c", "offset": 3},
        (400, "failed_precondition", "not_served"),
    ),
    ("unknown reader", CONFIRM, {"consumer_name": "nobody", "offset": 1}, (404, "not_found", None)),
    ("below 0", CONFIRM, {"consumer_name": "c", "offset": -1}, (400, "invalid_argument", "range")),
    ("no offset", CONFIRM, {"consumer_name": "c"}, (400, "invalid_argument", "missing")),
    (
        "no holder",
        CONFIRM,
        {"consumer_name": "c", "offset": 1, "holder": "somebody"},
        (409, "aborted", "consumer_held"),
    ),
    # extensions
    (
        "unknown id",
        f"{ADMIN}LookupFact",
        {"from_zone": "plant-a", "message_id": "never:1:told"},
        (404, "not_found", "fact_not_found"),
    ),
    (
        "an id in no log",
        f"{ADMIN}LookupFact",
        {"from_zone": "plant-a", "message_id": "never:1:told", "log": "sideways"},
        (400, "invalid_argument", "unknown_log"),
    ),
    ("empty batch", f"{ADMIN}AppendFacts", {}, (400, "invalid_argument", "missing")),
    (
        "batch too long",
        f"{ADMIN}AppendFacts",
        {"items": [{}] * 1001},
        (400, "invalid_argument", "length"),
    ),
    (
        "no such log",
        f"{ADMIN}CreateConsumer",
        {"consumer_name": "d", "log": "sideways"},
        (400, "invalid_argument", "unknown_log"),
    ),
    (
        "another log",
        f"{ADMIN}CreateConsumer",
        {"consumer_name": "c", "log": "inbound:x"},
        (409, "already_exists", "consumer_exists"),
    ),
    (
        "no such start",
        f"{ADMIN}CreateConsumer",
        {"consumer_name": "d", "from": "middle"},
        (400, "invalid_argument", None),
    ),
    (
        "beyond the head",
        f"{ADMIN}SeekConsumer",
        {"consumer_name": "c", "offset": 99},
        (400, "out_of_range", "beyond_head"),
    ),
    (
        "nobody to seek",
        f"{ADMIN}SeekConsumer",
        {"consumer_name": "nobody", "offset": 1},
        (404, "not_found", None),
    ),
    (
        "not the next",
        f"{ADMIN}QuarantineFact",
        {"consumer_name": "c", "offset": 2},
        (400, "failed_precondition", "not_next"),
    ),
    ("no such item", f"{ADMIN}ReleaseQuarantine", {"id": 77}, (404, "not_found", None)),
    ("nothing to discard", f"{ADMIN}DiscardQuarantine", {"id": 77}, (404, "not_found", None)),
    (
        "no such object",
        f"{ADMIN}GetObject",
        {"bucket": "files", "key": "gone"},
        (404, "not_found", "object_not_found"),
    ),
    ("no operation", f"{ADMIN}Dance", {}, (404, "unimplemented", "unknown_path")),
    ("no service", "/bsfg.v9.Boundary/AppendFact", {}, (404, "unimplemented", "unknown_path")),
]


@pytest.mark.req("BSFG:Errors", "P3", "P9")
@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [pytest.param(*row[1:], id=row[0]) for row in REFUSALS],
)
def test_a_refusal_says_what_it_is(
    node: NodeProcess, path: str, body: Any, wanted: tuple[int, str, str | None]
) -> None:
    """Status, code and reason are those of the table, what to do is said, and nothing changed."""
    before = standing(node)
    answer = node.ask(path, body)
    assert (answer.status, answer["code"]) == wanted[:2], answer
    assert set(answer) == {"code", "message", "details"}
    assert answer["message"]
    assert answer["details"]["reason"], answer
    assert answer["details"]["remedy"], answer
    if wanted[2] is not None:
        assert answer["details"]["reason"] == wanted[2]
    assert standing(node) == before
    if path == APPEND and wanted[2] != "conflicting_duplicate":
        asked = {"from_zone": "plant-a", "message_id": "refused:1:created"}
        assert node.ask(f"{ADMIN}LookupFact", asked).status == 404


@pytest.mark.req("P9")
def test_a_conflict_names_the_first_fact(node: NodeProcess) -> None:
    """The offset and both digests are in the answer, and the content is not."""
    answer = node.append("seed:2:created", {"secret": "four words of content"})
    details = answer["details"]
    assert details["offset"] == 2
    assert details["original_digest"] != details["digest"]
    assert {details[key][:7] for key in ("original_digest", "digest")} == {"sha256:"}
    assert "four words" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", APPEND),
        ("PUT", APPEND),
        ("DELETE", FETCH),
        ("GET", f"{ADMIN}GetStatus"),
        ("POST", "/v1/objects/files/there"),
        ("POST", "/metrics"),
    ],
)
def test_a_wrong_method(node: NodeProcess, method: str, path: str) -> None:
    """It is refused with an error like every other."""
    status, _headers, body = node.request(method, path, b"{}" if method != "GET" else b"")
    answer = json.loads(body)
    assert 400 <= status < 500
    assert answer["code"] in {"invalid_argument", "unimplemented"}
    assert isinstance(answer["details"], dict)


@pytest.mark.parametrize(
    "path", ["/", "/v1/objects/files", "/v2/objects/a/b", "/bsfg.v1.Boundary/"]
)
def test_an_unknown_path(node: NodeProcess, path: str) -> None:
    """There is nothing there, and the answer says where to look."""
    status, _headers, body = node.request("GET", path)
    assert status in {400, 404}
    assert json.loads(body)["details"]["reason"]


def put(node: NodeProcess, path: str, data: bytes, **headers: str) -> Answer:
    """A streamed put."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, _headers, body = node.request("PUT", path, data, named)
    answer = Answer(json.loads(body))
    answer.status = status
    return answer


@pytest.mark.req("P15", "BSFG:ArtifactObligations", "BOUNDARY:objects")
def test_streamed_objects_are_refused_alike(node: NodeProcess) -> None:
    """Other bytes, another digest than announced, and names that cannot be."""
    assert put(node, "/v1/objects/files/there", b"bytes").status == 200
    conflict = put(node, "/v1/objects/files/there", b"other")
    assert (conflict.status, conflict["details"]["reason"]) == (409, "object_conflict")
    assert node.request("GET", "/v1/objects/files/there")[2] == b"bytes"
    wrong = put(node, "/v1/objects/files/fresh", b"bytes", Digest_SHA256=DIGEST)
    assert (wrong.status, wrong["details"]["reason"]) == (400, "digest_mismatch")
    bad = put(node, "/v1/objects/files/fresh", b"bytes", Digest_SHA256="sha256:zz")
    assert (bad.status, bad["code"]) == (400, "invalid_argument")
    assert node.request("GET", "/v1/objects/files/fresh")[0] == 404
    deleted = node.request("DELETE", "/v1/objects/files/there")
    assert (deleted[0], json.loads(deleted[2])["details"]["reason"]) == (400, "referenced")
    assert node.request("DELETE", "/v1/objects/files/never")[0] == 404


@pytest.mark.req("BOUNDARY:objects")
def test_a_range_outside_an_object(node: NodeProcess) -> None:
    """416 with the real size; ranges inside are given exactly."""
    status, headers, body = node.request(
        "GET", "/v1/objects/files/there", headers={"Range": "bytes=99-"}
    )
    assert (status, headers["content-range"]) == (416, "bytes */5")
    assert json.loads(body)["code"] == "out_of_range"
    status, headers, body = node.request(
        "GET", "/v1/objects/files/there", headers={"Range": "bytes=1-3"}
    )
    assert (status, headers["content-range"], body) == (206, "bytes 1-3/5", b"yte")


@pytest.mark.req("C2", "BSFG:Confirms")
def test_a_repeated_confirmation_is_fine(node: NodeProcess) -> None:
    """At or below the cursor nothing happens, and the cursor is answered."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "again"})
    node.ask(FETCH, {"consumer_name": "again", "limit": 2})
    for offset, cursor in ((2, 2), (2, 2), (1, 2), (0, 2)):
        answer = node.ask(CONFIRM, {"consumer_name": "again", "offset": offset})
        assert (answer.status, answer["cursor"]) == (200, cursor)


def test_quarantine_states_are_kept(node: NodeProcess) -> None:
    """What was discarded cannot be released; the same again is fine."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "q"})
    node.ask(FETCH, {"consumer_name": "q"})
    item = node.ask(f"{ADMIN}QuarantineFact", {"consumer_name": "q", "offset": 1})
    assert item.status == 200
    for _ in range(2):
        assert node.ask(f"{ADMIN}DiscardQuarantine", {"id": item["id"]})["state"] == "discarded"
    refused = node.ask(f"{ADMIN}ReleaseQuarantine", {"id": item["id"]})
    assert (refused.status, refused["details"]["reason"]) == (400, "wrong_state")


@pytest.mark.req("P16", "BSFG:Errors")
def test_a_full_buffer(tmp_path: Path) -> None:
    """New facts are refused with a time to come back; known ones are answered as ever."""
    with running("plant-a", tmp_path / "data", "--capacity", "10000") as node:
        told = 0
        while (answer := node.append(f"order:{told}:created", "x" * 500)).status == 200:
            told += 1
        assert 5 <= told <= 20
        assert (answer.status, answer["code"]) == (429, "resource_exhausted")
        assert answer["details"]["reason"] == "buffer_full"
        assert answer["details"]["retry_after_ms"] > 0
        again = node.append("order:0:created", "x" * 500)
        assert (again.status, again["offset"], again["duplicate"]) == (200, 1, True)
        assert node.append("order:0:created", "other").status == 409
        items = [fact("order:0:created", "x" * 500), fact("fresh:1:created", "x" * 500)]
        results = node.ask(f"{ADMIN}AppendFacts", {"items": items})["results"]
        assert results[0]["duplicate"] is True
        assert results[1]["error"]["details"]["reason"] == "buffer_full"
        status = node.ask(f"{ADMIN}GetStatus", {})
        assert status["logs"][0]["head_offset"] == told
        assert "fill" in {alert["kind"] for alert in status["alerts"]}


RETENTION = """
[zones.plant-a.retention]
facts = 0.001
every = 0.05
"""


@pytest.mark.req("P7", "C9", "BSFG:RetrySafety")
def test_a_cursor_below_what_is_kept(tmp_path: Path) -> None:
    """The lost range is told, never skipped; the ledger still knows the ids."""
    settings = tmp_path / "ergon.toml"
    settings.write_text(RETENTION, encoding="utf-8")
    with running("plant-a", tmp_path / "data", "--config", str(settings)) as node:
        # Nothing goes while a required consumer has not confirmed it.
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "must"})
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "may", "required": False})
        for number in range(5):
            node.append(f"order:{number}:created")
        node.ask(FETCH, {"consumer_name": "must"})
        node.ask(CONFIRM, {"consumer_name": "must", "offset": 3})
        asked = {"consumer_name": "may"}
        while (answer := node.ask(FETCH, asked)).status == 200:
            assert [each["offset"] for each in answer["facts"]] == [1, 2, 3, 4, 5]
        assert (answer.status, answer["code"]) == (400, "out_of_range")
        details = answer["details"]
        assert (details["reason"], details["first_lost"], details["last_lost"]) == (
            "truncated",
            1,
            3,
        )
        sought = node.ask(f"{ADMIN}SeekConsumer", {**asked, "offset": 1})
        assert (sought.status, sought["details"]["reason"]) == (400, "truncated")
        again = node.append("order:1:created")
        assert (again["offset"], again["duplicate"]) == (2, True)
        found = {"from_zone": "plant-a", "message_id": "order:1:created"}
        assert node.ask(f"{ADMIN}LookupFact", found)["state"] == "truncated"
        assert node.ask(f"{ADMIN}SeekConsumer", {**asked, "offset": 3}).status == 200
        page = node.ask(FETCH, asked)
        assert [each["offset"] for each in page["facts"]] == [4, 5]


POLICY = """
[identities."somebody"]
operations = ["admin"]
assert = ["plant-a"]
"""


@pytest.mark.req("BOUNDARY:security")
def test_a_caller_without_a_name(tmp_path: Path) -> None:
    """A policy that does not know a caller refuses it as unauthenticated; nothing is stored."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    with running("plant-a", tmp_path / "data", "--policy", str(policy)) as node:
        answer = node.append("order:1:created")
        assert (answer.status, answer["code"]) == (401, "unauthenticated")
        assert isinstance(answer["details"], dict)
        assert node.ask(f"{ADMIN}GetStatus", {}).status == 401
        assert node.request("PUT", "/v1/objects/files/a", b"x")[0] == 401
        assert "may not AppendFact" in node.log()


@pytest.mark.req("BSFG:Errors")
def test_a_node_that_stops(tmp_path: Path) -> None:
    """While a request is still under way, others are told to come back; the exit is clean."""
    with running("plant-a", tmp_path / "data") as node:
        other = HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)
        other.request("GET", "/healthz")
        other.getresponse().read()
        with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) as slow:
            start = b"PUT /v1/objects/files/slow HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 4\r\n"
            slow.sendall(start + b"Expect: 100-continue\r\n\r\n")
            assert b"100 Continue" in slow.recv(4096)  # now the upload has begun
            slow.sendall(b"ab")
            os.kill(node.pid, signal.SIGTERM)
            answer = _last_answer(other)
            assert answer in {None, (503, "unavailable")}
            slow.sendall(b"cd")
            assert b"200 OK" in slow.recv(4096)
        other.close()
        assert node.wait() == 0


def _last_answer(connection: HTTPConnection) -> tuple[int, str] | None:
    """Ask until the node refuses, or has closed the connection."""
    body = json.dumps(fact("late:1:created")).encode()
    for _ in range(10_000):
        try:
            connection.request("POST", APPEND, body)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except OSError:
            return None
        if answer.status != 200:
            return answer.status, told["code"]
    raise AssertionError("the node goes on as if nothing had happened")
