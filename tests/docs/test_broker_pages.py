"""The pages about brokers are followed, with a broker on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.kafka import kafka_topic
from tests.connectors.sqs import sqs_queue
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.programs import run_python
from tests.servers.kafka import KafkaCluster
from tests.servers.s3 import REGION
from tests.servers.sqs import SqsServer

pytestmark = pytest.mark.slow


def followed(page: str, changes: dict[str, str], folder: Path, **environ: str) -> tuple[str, str]:
    """What the first program of a page prints, and what the page says that it prints."""
    found = list(blocks((ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")))
    program, shown = _first(found, "python"), _first(found, "text")
    text = program.text
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "program.py").write_text(text + "\n", encoding="utf-8")
    done = run_python("program.py", cwd=folder, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), shown.text.strip()


def _first(found: list[Block], language: str) -> Block:
    return next(each for each in found if each.language == language)


def test_the_page_about_kafka(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Its program prints what the page says, and leaves one dead letter."""
    topic = kafka.new_topic()
    changes = {"localhost:9092/orders": f"{kafka.server}/{topic}"}
    printed, shown = followed("consume-from-kafka.md", changes, tmp_path)
    assert printed == shown
    assert [each for each, _ in kafka_topic.dead_letters(kafka, topic)] == ["order-2"]


def test_the_page_about_sqs(sqs: SqsServer, tmp_path: Path) -> None:
    """Its program prints what the page says, and leaves one dead letter."""
    queue = sqs.new_queue()
    here = f"sqs://{REGION}/{queue}?endpoint={sqs.endpoint}"
    changes = {
        "sqs://eu-central-1/orders?": f"{here}&",
        'sqs://eu-central-1/orders"': f'{here}"',
    }
    printed, shown = followed("consume-from-sqs.md", changes, tmp_path)
    assert printed == shown
    assert [each for each, _ in sqs_queue.dead_letters(sqs, queue)] == ["order-2"]
