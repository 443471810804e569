"""What a node tells Prometheus, scraped as Prometheus does, and what its figures mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.tls import client_context
from tests.boundary.node.processes import ADMIN, CORE, NodeProcess, running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:operator")]

EVERYWHERE = {
    "bsfg_append_requests_total": "counter",
    "bsfg_append_failures_total": "counter",
    "bsfg_append_latency_seconds": "histogram",
    "bsfg_fetch_requests_total": "counter",
    "bsfg_confirm_requests_total": "counter",
    "bsfg_duplicates_total": "counter",
    "bsfg_conflicts_total": "counter",
    "bsfg_frontier_offset": "gauge",
    "bsfg_oldest_unconfirmed_seconds": "gauge",
    "bsfg_quarantine_items": "gauge",
    "bsfg_lost_facts_total": "counter",
    "bsfg_ledger_rows": "gauge",
    "bsfg_store_buffer_fill_percent": "gauge",
    "bsfg_artifact_bytes": "gauge",
    "bsfg_fsync_seconds": "histogram",
    "bsfg_group_commit_size": "histogram",
    "bsfg_gate_mode": "gauge",
    "bsfg_replication_lag_seconds": "gauge",
    "bsfg_replication_lag_high_watermark": "gauge",
}
SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{(?P<labels>[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*")*)\})?'
    r" (?P<value>[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|Inf|NaN))"
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scrape:
    """One look at ``/metrics``, read strictly."""

    def __init__(self, node: NodeProcess) -> None:
        status, headers, body = node.request("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        text = body.decode()
        assert text.endswith("\n")
        self.kinds: dict[str, str] = {}
        self.samples: Samples = {}
        helped: set[str] = set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                assert name not in helped, "a family comes in one piece"
                helped.add(name)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                assert name not in self.kinds
                self.kinds[name] = kind
            else:
                self._sample(line)
        assert helped == set(self.kinds)

    def _sample(self, line: str) -> None:
        found = SAMPLE.fullmatch(line)
        assert found, f"not in the text format: {line}"
        family = re.sub(r"_(bucket|sum|count)$", "", found["name"])
        assert found["name"] in self.kinds or self.kinds.get(family) == "histogram"
        key = (found["name"], tuple(LABEL.findall(found["labels"] or "")))
        assert key not in self.samples, f"twice: {line}"
        self.samples[key] = float(found["value"])

    def value(self, name: str, **labels: str) -> float:
        """One figure."""
        return self.samples[name, tuple(labels.items())]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that pulls from a peer which is not there."""
    nobody = "http://127.0.0.1:9"
    options = ("--capacity", "100000", "--peer", f"plant-b={nobody}")
    with running("plant-a", tmp_path / "data", *options) as node:
        yield node


def test_every_name_is_there(node: NodeProcess) -> None:
    """Each of the names that operators know is in a scrape, with its type, also before any use."""
    scrape = Scrape(node)
    missing = EVERYWHERE.keys() - scrape.kinds.keys()
    assert not missing
    assert {name: scrape.kinds[name] for name in EVERYWHERE} == EVERYWHERE


def test_what_the_disk_does_is_told(node: NodeProcess) -> None:
    """How long a sync takes, and how many appends share one."""
    for number in range(3):
        node.append(f"order:{number}:created")
    scrape = Scrape(node)
    assert 1 <= scrape.value("bsfg_fsync_seconds_count") <= 3
    assert scrape.value("bsfg_fsync_seconds_sum") > 0
    assert scrape.value("bsfg_group_commit_size_sum") == 3


def test_the_figures_follow_what_happens(node: NodeProcess) -> None:
    """Appends, duplicates, conflicts, refusals, pages, confirmations, objects, quarantine."""
    for number in range(5):
        node.append(f"order:{number}:created")
    node.append("order:0:created")
    node.append("order:0:created", "other")
    node.append("with a space")
    node.request("PUT", "/v1/objects/files/a", b"12345")
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    node.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})
    node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": 2})
    node.ask(f"{ADMIN}QuarantineFact", {"consumer_name": "c", "offset": 3})
    scrape = Scrape(node)
    assert scrape.value("bsfg_append_requests_total") == 8
    assert scrape.value("bsfg_duplicates_total") == 1
    assert scrape.value("bsfg_conflicts_total") == 1
    failures = {
        labels: value
        for (name, labels), value in scrape.samples.items()
        if name == "bsfg_append_failures_total"
    }
    assert sum(failures.values()) == 2
    assert scrape.value("bsfg_append_failures_total", reason="conflicting_duplicate") == 1
    assert scrape.value("bsfg_fetch_requests_total") == 1
    assert scrape.value("bsfg_confirm_requests_total") == 1
    assert scrape.value("bsfg_frontier_offset", consumer="c") == 3
    assert scrape.value("bsfg_quarantine_items") == 1
    assert scrape.value("bsfg_ledger_rows") == 5
    assert scrape.value("bsfg_artifact_bytes") == 5
    assert scrape.value("bsfg_lost_facts_total") == 0
    assert 0 < scrape.value("bsfg_store_buffer_fill_percent") < 100
    assert scrape.value("bsfg_oldest_unconfirmed_seconds", consumer="c") >= 0


@pytest.mark.req("P17")
def test_the_histogram_is_one(node: NodeProcess) -> None:
    """Its buckets rise to the count, and every answered append is in it."""
    for number in range(20):
        node.append(f"order:{number}:created")
    scrape = Scrape(node)
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in scrape.samples.items()
        if name == "bsfg_append_latency_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert [value for _le, value in buckets] == sorted(value for _le, value in buckets)
    assert buckets[-1] == (float("inf"), scrape.value("bsfg_append_latency_seconds_count"))
    assert scrape.value("bsfg_append_latency_seconds_count") == 20
    assert scrape.value("bsfg_append_latency_seconds_sum") > 0


@pytest.mark.req("P17")
def test_appends_of_a_batch_are_timed_too(node: NodeProcess) -> None:
    """A node that gets batches only shows how long they take."""
    envelope = {"from_zone": "a", "to_zone": "b", "produced_at_unix_ms": 1}
    what = {"subject": "order:1", "predicate": "created", "object_json": 1}
    items = [{"envelope": {**envelope, "message_id": f"o:{n}:x"}, "fact": what} for n in range(3)]
    assert node.ask(f"{ADMIN}AppendFacts", {"items": items}).status == 200
    scrape = Scrape(node)
    assert scrape.value("bsfg_append_requests_total") == 3
    assert scrape.value("bsfg_append_latency_seconds_count") >= 1


def test_the_gate_is_shown(node: NodeProcess) -> None:
    """Exactly one mode of a link is 1: autonomous, when nobody is there."""

    def modes() -> dict[str, float]:
        return {
            dict(labels)["mode"]: value
            for (name, labels), value in Scrape(node).samples.items()
            if name == "bsfg_gate_mode"
        }

    until(lambda: modes().get("autonomous") == 1, "a shut gate")
    assert sorted(modes().values()) == [0, 0, 1]
    assert set(modes()) == {"normal", "autonomous", "reconciling"}


def test_names_that_need_escaping(tmp_path: Path) -> None:
    """A zone may be called anything; the scrape stays readable."""
    odd = 'Plant "A"\\1'
    nobody = "http://127.0.0.1:9"
    with running("plant-a", tmp_path / "data", "--peer", f"{odd}={nobody}") as node:
        scrape = Scrape(node)
        peers = {dict(labels).get("peer") for _name, labels in scrape.samples}
        assert odd.replace("\\", "\\\\").replace('"', '\\"') in peers


def test_lag_behind_a_peer(tmp_path: Path) -> None:
    """A backlog is carried over, and both lag figures are those of seconds."""
    with running("plant-a", tmp_path / "a") as first:
        for number in range(10):
            first.append(f"order:{number}:created")
        options = ("--peer", f"plant-a={first.url}")
        with running("plant-b", tmp_path / "b", *options) as second:

            def highest() -> float:
                return Scrape(second).value("bsfg_replication_lag_high_watermark", peer="plant-a")

            until(lambda: highest() > 0, "a page that is confirmed")  # the lag is told after it
            scrape = Scrape(second)
            assert scrape.value("bsfg_pulled_facts_total", peer="plant-a") == 10
            assert scrape.value("bsfg_replication_lag_seconds", peer="plant-a") >= 0
            assert Scrape(first).value("bsfg_frontier_offset", consumer="zone:plant-b") == 10


@pytest.mark.req("BOUNDARY:security")
def test_the_end_of_the_certificate(tmp_path: Path) -> None:
    """A node with certificates tells how long its own is good for, and counts who is denied."""
    certs = tmp_path / "certs"
    make_ca(certs)
    issue(certs, "plant-a")
    files = (certs / "plant-a.pem", certs / "plant-a.key", certs / "ca.pem")
    options = ["--cert", str(files[0]), "--key", str(files[1]), "--ca", str(files[2])]
    with running("plant-a", tmp_path / "data", *options) as node:
        node.tls = client_context(*files)
        until(lambda: "bsfg_cert_expiry_seconds" in Scrape(node).kinds, "the certificate is read")
        assert Scrape(node).value("bsfg_cert_expiry_seconds") > 0
        assert json.loads(node.request("GET", "/healthz")[2])["status"] == "ok"
