"""The page about NATS is followed, with a server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.nats.streams import Streams
from tests.docs.pages import ROOT, blocks
from tests.docs.programs import run_python
from tests.servers.nats import NatsServer

PAGE = ROOT / "docs" / "howto" / "consume-from-nats.md"


@pytest.mark.slow
def test_its_program_prints_what_it_says(own_nats: NatsServer, tmp_path: Path) -> None:
    """Work is done once, and what fails is a dead letter with its reason."""
    own_nats.start()
    streams = Streams(own_nats.url())
    config = {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}
    streams.ask("STREAM.CREATE.ORDERS", config)
    found = list(blocks(PAGE.read_text(encoding="utf-8")))
    program = next(each for each in found if each.file == "billing.py")
    text = program.text.replace("localhost:4222", f"127.0.0.1:{own_nats.port}")
    (tmp_path / "billing.py").write_text(f"{text}\n", encoding="utf-8")
    done = run_python("billing.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = next(each for each in found if each.language == "text")
    assert done.stdout.strip() == shown.text
    [(_, headers)] = streams.stored("ORDERS", "orders.dead")
    assert headers["ergon-transaction-id"] == "order-2"
    assert "nothing%20to%20bill" in headers["ergon-reason"]
    streams.close()
