"""The pages about brokers are followed, with a broker on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.kafka_topic import dead_letters
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.programs import run_python
from tests.servers.kafka import KafkaCluster

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
    assert [each for each, _ in dead_letters(kafka, topic)] == ["order-2"]
