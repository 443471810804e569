"""The page's way from Kafka into a zone: each message is one fact, whoever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework import Zone
from tests import fork_server
from tests.connectors.kafka.kafka_topic import send
from tests.docs.pages import ROOT, blocks
from tests.servers.kafka import FAST, KafkaCluster

COUNT = 40
PAGE = ROOT / "docs" / "howto" / "consume-from-kafka.md"


def write_program(folder: Path, kafka: KafkaCluster, topic: str) -> Path:
    """The program of the page, with a group that soon misses a dead member."""
    (block,) = [each for each in blocks(PAGE.read_text(encoding="utf-8")) if each.file == "tell.py"]
    url = "kafka://localhost:9092/orders?group=tell"
    assert url in block.text
    text = block.text.replace(url, "orders").replace("app.run()", "app.run(burst=True)")
    client = ", ".join(f'"{name}" = {value}' for name, value in FAST.items())
    (folder / "ergon.toml").write_text(
        f'[connectors.orders]\nurl = "kafka://{kafka.server}/{topic}"\ngroup = "tell"\n'
        f"client = {{ {client} }}\n"
    )
    program = folder / "tell.py"
    program.write_text(text)
    return program


@pytest.mark.slow
def test_each_message_is_one_fact(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A process dies before a fact is on disk, others after it and before the offset is."""
    topic = kafka.new_topic(2)
    for n in range(COUNT):
        send(kafka, topic, b'{"id": %d}' % n, key=str(n))
    program = write_program(tmp_path, kafka, topic)

    def run(failpoints: str) -> str:
        done = fork_server.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "PYTHONUNBUFFERED": "1",
                "ERGON_FAILPOINTS": failpoints,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if failpoints else 0), done.stderr
        said: str = done.stdout
        return said

    for point in ("before=kill@2", "after=kill@3", "after=kill@1"):
        run(f"boundary.append.{point}")
    assert "again" in run("")
    zone = Zone("plant", str(tmp_path / "ergon.zones" / "plant"))
    found = {each.transaction_id: each.payload["object_json"]["id"] for each in zone.read("check")}
    zone.close()
    assert sorted(found.values()) == list(range(COUNT))
    assert all(each.startswith(f"placed:{topic}%3A") for each in found)
