"""Two zones in two processes, over mutual TLS, with a cable that is cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.tls import client_context
from tests.boundary.node.cables import Cable
from tests.boundary.node.processes import ADMIN, CORE, NodeProcess, fact

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:zones", "BOUNDARY:security")]

POLICY = """
[identities."plant-a"]
operations = ["admin"]
assert = ["plant-a"]
target = ["*"]
logs = ["*"]
consumers = ["*"]
buckets = ["*"]

[identities."plant-b"]
operations = ["pull", "SeekConsumer"]
logs = ["outbound"]
consumers = ["zone:plant-b"]
"""


class Sites:
    """Zone plant-a, a cable, and zone plant-b that pulls through it."""

    def __init__(self, folder: Path) -> None:
        certs = folder / "certs"
        make_ca(certs)
        for zone in ("plant-a", "plant-b"):
            issue(certs, zone)
        policy = folder / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        self.a = self._node("plant-a", folder, certs, "--policy", str(policy))
        self.cable = Cable(self.a.port)
        self.b = self._node(
            "plant-b", folder, certs, "--peer", f"plant-a=https://127.0.0.1:{self.cable.port}"
        )

    @staticmethod
    def _node(zone: str, folder: Path, certs: Path, *more: str) -> NodeProcess:
        files = (certs / f"{zone}.pem", certs / f"{zone}.key", certs / "ca.pem")
        options = ["--cert", str(files[0]), "--key", str(files[1]), "--ca", str(files[2])]
        node = NodeProcess(zone, folder / zone, *options, *more)
        node.tls = client_context(*files)
        return node

    def inbound(self, count: int) -> list[dict[str, Any]]:
        """The first facts of b's inbound log, waited for."""
        self.b.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "erp", "log": "inbound:plant-a"})
        found: list[dict[str, Any]] = []
        while len(found) < count:
            asked = {"consumer_name": "erp", "limit": 500, "wait_ms": 20_000}
            page = self.b.ask(f"{CORE}FetchFacts", asked)["facts"]
            assert page, f"only {len(found)} of {count} came"
            found += page
            self.b.ask(
                f"{CORE}ConfirmReceipt", {"consumer_name": "erp", "offset": page[-1]["offset"]}
            )
        return found

    def mode(self) -> str:
        """How b's link to a stands."""
        (link,) = self.b.ask(f"{ADMIN}GetStatus", {})["links"]
        return str(link["mode"])

    def close(self) -> None:
        """End everything."""
        self.b.kill()
        self.cable.close()
        self.a.kill()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    """Two sites for one test."""
    sites = Sites(tmp_path)
    try:
        yield sites
    finally:
        sites.close()


@pytest.mark.req("P13", "P16", "C8")
def test_a_cut_link_loses_and_doubles_nothing(sites: Sites) -> None:
    """Under load the link is cut and healed: the forward log equals the store log."""
    data = b"batch report"
    path = "/v1/objects/batch-files/report.pdf"
    told = json.loads(sites.a.request("PUT", path, data)[2])
    with ThreadPoolExecutor(4) as threads:

        def append(number: int) -> tuple[int, str]:
            content = told if number % 50 == 0 else number
            answer = sites.a.append(f"order:{number}:created", content)
            assert answer.status == 200, answer
            return answer["offset"], f"order:{number}:created"

        before = list(threads.map(append, range(100)))
        assert len(sites.inbound(100)) == 100
        sites.cable.cut()
        during = list(threads.map(append, range(100, 300)))  # nobody waits for a peer
        sites.cable.heal()
        after = list(threads.map(append, range(300, 400)))
    found = sites.inbound(300)
    wanted = sorted([*before, *during, *after])
    assert [offset for offset, _id in wanted] == list(range(1, 401))
    assert [each["envelope"]["message_id"] for each in found] == [name for _o, name in wanted[100:]]
    assert [each["source_offset"] for each in found] == [offset for offset, _n in wanted[100:]]
    assert [each["offset"] for each in found] == list(range(101, 401))
    assert sites.b.request("GET", path)[2] == data


def test_a_dead_receiver_goes_on_where_it_was(sites: Sites) -> None:
    """The receiver is killed while facts arrive, and starts again."""
    for number in range(60):
        sites.a.append(f"order:{number}:created", number)
    sites.inbound(1)
    sites.b.kill()
    for number in range(60, 90):
        sites.a.append(f"order:{number}:created", number)
    sites.b.start()
    status = sites.b.ask(
        f"{ADMIN}LookupFact", {"from_zone": "plant-a", "message_id": "order:0:created"}
    )
    assert status["log"] == "inbound:plant-a"
    sites.b.ask(
        f"{ADMIN}SeekConsumer", {"consumer_name": "erp", "offset": 0, "reason": "all again"}
    )
    found = sites.inbound(90)
    assert [each["source_offset"] for each in found] == list(range(1, 91))


def test_a_half_open_link_is_noticed(sites: Sites) -> None:
    """A link that swallows everything is given up and made anew."""
    sites.a.append("order:0:created", 0)
    sites.inbound(1)
    sites.cable.stall()
    sites.a.append("order:1:created", 1)
    sites.cable.heal()
    assert sites.inbound(1)[0]["envelope"]["message_id"] == "order:1:created"


def test_a_peer_may_do_only_what_the_policy_says(sites: Sites) -> None:
    """The receiver may pull; it may not append, nor read as somebody else."""
    sites.a.tls = sites.b.tls
    refused = sites.a.ask(f"{CORE}AppendFact", fact("order:9:created", zone="plant-b"))
    assert (refused.status, refused["code"]) == (403, "permission_denied")
    asked = {"consumer_name": "zone:plant-c", "log": "outbound"}
    refused = sites.a.ask(f"{ADMIN}CreateConsumer", asked)
    assert (refused.status, refused["code"]) == (403, "permission_denied")
    assert "may not AppendFact" in sites.a.log()


def test_a_zone_may_speak_only_for_itself(sites: Sites) -> None:
    """A producer with plant-a's certificate cannot assert another zone."""
    refused = sites.a.ask(f"{CORE}AppendFact", fact("order:9:created", zone="enterprise"))
    assert (refused.status, refused["details"]["field"]) == (403, "envelope.from_zone")


def test_a_large_artifact_resumes(sites: Sites) -> None:
    """The link is cut while an artifact crosses; it arrives whole, and its fact after it."""
    data = hashlib.sha256(b"seed").digest() * 200_000
    told = json.loads(sites.a.request("PUT", "/v1/objects/batch-files/big.bin", data)[2])
    sites.cable.cut()
    sites.a.append("order:1:attached", told)
    sites.cable.heal()
    while sites.cable.carried < len(data) // 4:
        sites.b.request("GET", "/healthz")
    sites.cable.cut()
    sites.cable.heal()
    (found,) = sites.inbound(1)
    assert found["fact"]["object_json"] == told
    assert sites.b.request("GET", "/v1/objects/batch-files/big.bin")[2] == data


@pytest.mark.req("P13")
def test_sealing_is_sticky_and_appends_go_on(sites: Sites) -> None:
    """A sealed link stays shut over a restart; appends never notice; opening carries all over."""
    assert sites.b.ask(f"{ADMIN}Seal", {"peer": "plant-a", "reason": "maintenance"})["sealed"]
    sites.b.kill()
    sites.b.start()
    assert sites.a.append("order:1:created").status == 200
    link = sites.b.ask(f"{ADMIN}GetStatus", {})["links"][0]
    assert (link["sealed"], link["reason"]) == (True, "maintenance")
    sites.b.ask(f"{ADMIN}Open", {"peer": "plant-a"})
    assert sites.inbound(1)[0]["envelope"]["message_id"] == "order:1:created"
