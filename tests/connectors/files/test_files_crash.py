"""A reader of files is killed again and again: it goes on exactly where it stopped."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import fork_server
from tests.connectors.files import reader_child

ROWS = 40


@pytest.mark.slow
def test_kills_lose_nothing_and_repeat_nothing_settled(tmp_path: Path) -> None:
    """Of plain and compressed files, CSV and JSON Lines."""
    folder, diary = tmp_path / "in", tmp_path / "diary"
    folder.mkdir()
    lines = [f"a{n}" for n in range(ROWS)]
    (folder / "a.csv").write_text("id,n\n" + "".join(f'{each},"1\n2"\n' for each in lines))
    text = "".join(f'{{"id": "b{n}"}}\n' for n in range(ROWS))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    command = [sys.executable, reader_child.__file__, str(folder), str(diary)]
    for rows in (1, 9, 13, 21, 8):
        with fork_server.start(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(rows):
                assert child.stdout.readline() == "x\n"
            child.send_signal(signal.SIGKILL)
    assert fork_server.run(command, capture_output=True, text=True, timeout=60).returncode == 0
    notes = [line.split() for line in diary.read_text().splitlines()]
    acked = Counter(name for verb, name in notes if verb == "acked")
    began = Counter(name for verb, name in notes if verb == "began")
    wanted = {*lines, *(f"b{n}" for n in range(ROWS))}
    assert set(acked) | set(began) == wanted
    assert max(acked.values()) == 1
    # Only the row that was being settled at a kill may have begun twice.
    assert sum(began.values()) <= len(wanted) + 5
