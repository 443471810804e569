"""The page about RabbitMQ is followed step by step, with a real broker and a real database."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.programs import run_python
from tests.servers.rabbitmq import RabbitServer

PAGE = ROOT / "docs" / "howto" / "consume-from-rabbitmq.md"


@pytest.mark.slow
def test_its_programs_print_what_it_says(
    rabbit_server: RabbitServer, postgres_url: str, tmp_path: Path
) -> None:
    """Work is done, what fails is set aside, and what comes twice has one effect."""
    orders = rabbit_server.new_queue()
    printed, shown = [], []
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file is not None:
            text = block.text.replace("amqp://guest:guest@localhost/orders", orders)
            text = re.sub(r"postgresql://\w+@db\.example\.org/work", postgres_url, text)
            (tmp_path / block.file).write_text(text + "\n", encoding="utf-8")
        elif block.language == "sh":
            for line in block.text.splitlines():
                done = run_python(*shlex.split(line)[1:], cwd=tmp_path)
                assert done.returncode == 0, done.stderr
                printed += done.stdout.splitlines()
        elif block.language == "text":
            shown += block.text.splitlines()
    assert printed == shown
