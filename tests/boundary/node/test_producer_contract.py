"""The producer contract, against a real node."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.node.processes import ADMIN, CORE, NodeProcess, fact, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for the whole module; every test uses ids of its own."""
    with running("plant-a", tmp_path_factory.mktemp("zone") / "data") as node:
        yield node


def reference(key: str, data: bytes) -> dict[str, Any]:
    """What a fact says about an artifact."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"bucket": "batch-files", "key": key, "digest": digest, "size": len(data)}


@pytest.mark.req("BSFG:Append", "P6", "BSFG:RetrySafety")
def test_retries_answer_the_same_offset(node: NodeProcess) -> None:
    """However often a fact is sent, it is there once, at one offset."""
    first = node.append("retry:1:created")
    again = [node.append("retry:1:created") for _ in range(5)]
    assert first.status == 200
    assert first["duplicate"] is False
    assert {answer["offset"] for answer in again} == {first["offset"]}
    assert all(answer["duplicate"] for answer in again)
    assert node.append("retry:2:created")["offset"] == first["offset"] + 1


@pytest.mark.req("P8")
def test_concurrent_duplicates_share_one_offset(node: NodeProcess) -> None:
    """Sixty-four producers with the same id get one offset, and one of them was first."""
    with ThreadPoolExecutor(64) as threads:
        answers = list(threads.map(lambda _: node.append("race:1:created"), range(64)))
    assert len({answer["offset"] for answer in answers}) == 1
    assert sum(not answer["duplicate"] for answer in answers) == 1


@pytest.mark.req("P9", "BSFG:Ids")
def test_other_content_is_a_conflict(node: NodeProcess) -> None:
    """The same id with other content is refused, and changes nothing."""
    first = node.append("conflict:1:created", {"a": 1})
    refused = node.append("conflict:1:created", {"a": 2})
    assert refused.status == 409
    assert refused["code"] == "already_exists"
    assert refused["details"]["reason"] == "conflicting_duplicate"
    assert refused["details"]["offset"] == first["offset"]
    assert node.append("conflict:1:created", {"a": 1})["offset"] == first["offset"]


@pytest.mark.req("P9")
@pytest.mark.parametrize(
    "spelling",
    [
        b'{"b":[1,"\\u00e9"],"a":1.0}',
        '{"a":1,"b":[1.0,"é"]}'.encode(),
        b'{ "b" : [ 1 , "\\u00E9" ] , "a" : 1e0 }',
    ],
)
def test_another_spelling_is_no_conflict(node: NodeProcess, spelling: bytes) -> None:
    """Key order, number forms, escapes and blanks do not change what is told."""
    body = json.dumps(fact("spelling:1:created", 0)).encode()
    answer = node.ask(
        f"{CORE}AppendFact", body.replace(b'"object_json": 0', b'"object_json": ' + spelling)
    )
    assert answer.status == 200, answer
    assert answer["offset"] == node.append("spelling:1:created", {"a": 1, "b": [1, "é"]})["offset"]


@pytest.mark.req("P1", "BSFG:ArtifactObligations", "BSFG:Sequence")
def test_a_fact_waits_for_its_artifact(node: NodeProcess) -> None:
    """A reference is refused until the artifact is there with that digest and size."""
    data = b"%PDF batch order"
    told = reference("order-1.pdf", data)
    refused = node.append("artifact:1:attached", told)
    assert (refused.status, refused["details"]["reason"]) == (400, "artifact_missing")
    status, _headers, answer = node.request("PUT", "/v1/objects/batch-files/order-1.pdf", data)
    assert status == 200
    assert json.loads(answer) == told
    wrong = node.append("artifact:1:attached", {**told, "size": 3})
    assert (wrong.status, wrong["details"]["reason"]) == (400, "artifact_mismatch")
    assert node.append("artifact:1:attached", told).status == 200


@pytest.mark.req("P15", "BSFG:ArtifactObligations")
def test_an_artifact_never_changes(node: NodeProcess) -> None:
    """The same bytes again are fine, others are refused; a referenced object is not deleted."""
    path, data = "/v1/objects/batch-files/fixed.pdf", b"first"
    assert node.request("PUT", path, data)[0] == 200
    assert node.request("PUT", path, data)[0] == 200
    status, _headers, body = node.request("PUT", path, b"second")
    assert status == 409
    assert json.loads(body)["details"]["reason"] == "object_conflict"
    assert node.append("artifact:2:attached", reference("fixed.pdf", data)).status == 200
    status, _headers, body = node.request("DELETE", path)
    assert status == 400
    assert json.loads(body)["details"]["reason"] == "referenced"
    assert node.request("GET", path)[2] == data


@pytest.mark.req("P3", "BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("envelope", "message_id", None),
        ("envelope", "message_id", "with a space"),
        ("envelope", "from_zone", ""),
        ("envelope", "to_zone", 7),
        ("envelope", "produced_at_unix_ms", 0),
        ("envelope", "produced_at_unix_ms", "soon"),
        ("envelope", "labels", {"k": 1}),
        ("envelope", "object_media_type", "pdf"),
        ("fact", "subject", "no kind"),
        ("fact", "predicate", "HasFile"),
        ("fact", "object_json", None),
    ],
)
def test_each_field_is_checked(node: NodeProcess, part: str, name: str, value: Any) -> None:
    """A missing or wrong field is refused with its path."""
    body = fact("invalid:1:created")
    if value is None:
        del body[part][name]
    else:
        body[part][name] = value
    answer = node.ask(f"{CORE}AppendFact", body)
    assert (answer.status, answer["code"]) == (400, "invalid_argument")
    assert answer["details"]["field"].startswith(f"{part}.{name}"), answer


@pytest.mark.req("BOUNDARY:node")
def test_a_batch_has_an_outcome_per_item(node: NodeProcess) -> None:
    """A bad item in a batch spoils nothing, and the order stays."""
    node.append("batch:0:created", 0)
    items = [
        fact("batch:1:created"),
        fact("batch:0:created", 0),
        fact("batch:0:created", "other"),
        {"envelope": {}, "fact": {}},
        fact("batch:2:created"),
    ]
    results = node.ask(f"{ADMIN}AppendFacts", {"items": items})["results"]
    assert results[4]["offset"] == results[0]["offset"] + 1
    assert results[1]["duplicate"] is True
    assert results[2]["error"]["details"]["reason"] == "conflicting_duplicate"
    assert results[3]["error"]["code"] == "invalid_argument"


@pytest.mark.req("P14", "BSFG:Errors")
def test_an_id_can_be_looked_up(node: NodeProcess) -> None:
    """After a crash a producer asks whether its fact is there."""
    offset = node.append("lookup:1:created")["offset"]
    asked = {"from_zone": "plant-a", "message_id": "lookup:1:created"}
    assert node.ask(f"{ADMIN}LookupFact", asked)["offset"] == offset
    missing = node.ask(f"{ADMIN}LookupFact", {**asked, "message_id": "lookup:9:created"})
    assert (missing.status, missing["code"]) == (404, "not_found")


@pytest.mark.req("P12", "BSFG:Confirms")
def test_readers_never_find_a_lower_offset_later(node: NodeProcess) -> None:
    """While many append, every page a reader sees goes on exactly where the last one ended."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "watcher", "from": "end"})
    numbers = itertools.count()
    with ThreadPoolExecutor(8) as threads:
        appends = [
            threads.submit(node.append, f"visible:{next(numbers)}:created") for _ in range(200)
        ]
        seen: list[int] = []
        while len(seen) < 200:
            asked = {"consumer_name": "watcher", "limit": 50, "wait_ms": 2000}
            page = node.ask(f"{CORE}FetchFacts", asked)["facts"]
            seen += [each["offset"] for each in page]
            if page:
                node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "watcher", "offset": seen[-1]})
        assert all(append.result().status == 200 for append in appends)
    assert seen == list(range(seen[0], seen[0] + 200))


@pytest.mark.req("BOUNDARY:http")
def test_the_contract_is_served(node: NodeProcess) -> None:
    """The .proto file and the OpenAPI document name every operation."""
    document = json.loads(node.request("GET", "/openapi.json")[2])
    proto = node.request("GET", "/bsfg/v1/boundary.proto")[2].decode()
    for path in document["paths"]:
        name = path.rpartition("/")[2]
        assert name == "{key}" or f"rpc {name}(" in proto, path
    for name in ("AppendFact", "FetchFacts", "ConfirmReceipt", "PutObject"):
        assert f"/bsfg.v1.Boundary/{name}" in document["paths"]


@pytest.mark.req("P7", "P11", "C1")
def test_everything_survives_a_kill(tmp_path: Path) -> None:
    """What was acknowledged is there after SIGKILL, and a repeated id has its old offset."""
    node = NodeProcess("plant-a", tmp_path / "data")
    try:
        offsets = {
            f"kill:{n}:created": node.append(f"kill:{n}:created")["offset"] for n in range(20)
        }
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
        page = node.ask(f"{CORE}FetchFacts", {"consumer_name": "c", "limit": 7})["facts"]
        node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": page[-1]["offset"]})
        node.kill()
        node.start()
        again = {each: node.append(each) for each in offsets}
        assert {each: answer["offset"] for each, answer in again.items()} == offsets
        assert all(answer["duplicate"] for answer in again.values())
        page = node.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})["facts"]
        assert [each["offset"] for each in page] == list(range(8, 21))
        assert node.stop() == 0
    finally:
        node.kill()
