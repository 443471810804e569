"""The page about MQTT is followed step by step, with a real broker."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.programs import run_python
from tests.servers.mosquitto import Mosquitto

PAGE = ROOT / "docs" / "howto" / "consume-from-mqtt.md"


@pytest.mark.slow
def test_its_programs_print_what_it_says(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """A session that is there gets what is published later, and failures are dead letters."""
    printed: list[str] = []
    shown: list[str] = []
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file is not None:
            text = block.text.replace("mqtt://localhost", f"mqtt://127.0.0.1:{mosquitto.port}")
            (tmp_path / block.file).write_text(text + "\n", encoding="utf-8")
        elif block.language == "sh":
            for line in block.text.splitlines():
                done = run_python(*shlex.split(line)[1:], cwd=tmp_path)
                assert done.returncode == 0, done.stderr
                printed += done.stdout.splitlines()
        elif block.language == "text":
            shown += block.text.splitlines()
    assert printed == shown
