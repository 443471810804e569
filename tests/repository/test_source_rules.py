"""The rules about names in the source, each tried on planted violations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import source_rules
from tools.source_rules import (
    Rule,
    core_imports,
    growing_delays,
    judge_mentions,
    new_shortcuts,
    plain_syncs,
    private_attributes,
    replaced_constants,
    rules_for,
    shortcuts,
    sleeps,
)

BROKEN = [
    (judge_mentions, "from ergon_framework.core.retry import judge"),
    (judge_mentions, "from ergon_framework.core.retry import judge as decide"),
    (judge_mentions, "from ergon_framework.core import retry\nretry.judge(1)"),
    (judge_mentions, "def judge(): ..."),
    (judge_mentions, "decide = judge"),
    (judge_mentions, "from ergon_framework.core import retry\ngetattr(retry, 'judge')(1)"),
    (judge_mentions, "from operator import attrgetter\nattrgetter('judge')(retry)"),
    (judge_mentions, "vars(retry)['judge'](1)"),
    (growing_delays, "while True:\n    pause = min(2 * pause, LONGEST)"),
    (growing_delays, "delay *= factor"),
    (growing_delays, "self._backoff = min(self._backoff * 2, 30.0)"),
    (growing_delays, "wait = first * 2 ** attempt"),
    (growing_delays, "retry_delay <<= 1"),
    (growing_delays, "if (delay := delay * 2) > 5: ..."),
    (sleeps, "import time\ntime.sleep(1)"),
    (sleeps, "from time import sleep as rest"),
    (sleeps, "async def f():\n    await asyncio.sleep(0)"),
    (sleeps, "def f(sleep=time.sleep): ..."),
    (sleeps, "getattr(time, 'sleep')(1)"),
    (plain_syncs, "import os\nos.fsync(fd)"),
    (plain_syncs, "from os import fdatasync"),
    (plain_syncs, "sync = getattr(os, 'fdatasync', None)"),
    (private_attributes, "assert pool._idle == 2"),
    (private_attributes, "self._pool._idle.clear()"),
    (private_attributes, "from x import link\nlink._wait()"),
    (replaced_constants, "monkeypatch.setattr(pool, 'REST', 0.0)"),
    (replaced_constants, "monkeypatch.setattr('ergon_framework.jobs.worker.LEAVING', 1)"),
    (replaced_constants, "with mock.patch.object(client, 'TIMEOUT', 1.0): ..."),
    (replaced_constants, "self.patch.setattr(notifier, '_ALIVE', 0.1)"),
    (core_imports, "import time"),
    (core_imports, "from datetime import datetime"),
    (core_imports, "import random as dice"),
    (core_imports, "from importlib import import_module"),
    (core_imports, "import psycopg"),
    (core_imports, "import jsonl"),
    (core_imports, "__import__('time')"),
    (core_imports, "from ergon_framework.engine.clocks import SYSTEM_CLOCK"),
]
FINE = [
    (judge_mentions, "from ergon_framework.core.retry import Backoff, RetryRule"),
    (judge_mentions, "# the judge decides"),
    (judge_mentions, '"""Ask judge."""'),
    (judge_mentions, "misjudged = judges = 1"),
    (growing_delays, "LONGEST_WAIT = 1024 * 1024"),
    (growing_delays, "wait_ms = round(wait * 1000)"),
    (growing_delays, "delay = min(delay, left)"),
    (growing_delays, "size *= 2"),
    (growing_delays, "waiters += 1"),
    (sleeps, "clock.sleep(1)"),
    (sleeps, '"""It may time.sleep for long."""'),
    (plain_syncs, "sync_file(fd)\nfolder.sync()\nfsync = True"),
    (private_attributes, "self._idle = 2\nother._idle"),
    (private_attributes, "row._replace(a=1)\nos._exit(0)\nx.__dict__"),
    (private_attributes, "class Double:\n    _idle: int\nDouble()._idle"),
    (replaced_constants, "monkeypatch.setattr(os, 'link', crossed)"),
    (replaced_constants, "monkeypatch.setenv('HOME', 'x')"),
    (core_imports, "from collections.abc import Mapping"),
    (core_imports, "from ergon_framework.core.retry import Backoff"),
    (core_imports, "import math, re"),
]


@pytest.mark.parametrize(("rule", "source"), BROKEN)
def test_a_planted_violation_is_found(rule: Rule, source: str) -> None:
    """Importing, renaming, reaching through a module or a string all count."""
    assert list(rule(ast.parse(source)))


@pytest.mark.parametrize(("rule", "source"), FINE)
def test_what_keeps_to_the_rule_passes(rule: Rule, source: str) -> None:
    """Documents of the core may be imported anywhere, prose may speak of anything."""
    assert list(rule(ast.parse(source))) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("core/retry.py", {core_imports}),
        ("core_two/a.py", {judge_mentions, growing_delays, sleeps, plain_syncs}),
        ("engine/clocks.py", {judge_mentions, growing_delays, plain_syncs}),
        ("storage/fsync.py", {judge_mentions, growing_delays, sleeps}),
        ("testing/scripted.py", {judge_mentions, growing_delays, plain_syncs}),
        ("jobs/worker.py", {judge_mentions, growing_delays, sleeps, plain_syncs}),
    ],
)
def test_each_rule_binds_its_files(path: str, expected: set[Rule]) -> None:
    """The core decides and may not do; the clocks alone sleep; everybody else does neither."""
    assert set(rules_for(path)) == expected


def test_a_violation_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, and the output says where and what to do."""
    (tmp_path / "a.py").write_text("x = 1\njudge()\n")
    assert source_rules.main(package=tmp_path, tests=tmp_path) == 1
    assert "a.py:2: only the core calls judge" in capsys.readouterr().out


def test_a_test_that_reaches_into_a_class_is_refused(tmp_path: Path) -> None:
    """A file may have as many such places as it is known for, and no more."""
    (tmp_path / "test_a.py").write_text("pool._idle\npool._busy\n")
    found = shortcuts(tmp_path)
    assert len(new_shortcuts(found, {})) == 2
    assert len(new_shortcuts(found, {"private_attributes": {"test_a.py": 1}})) == 2
    assert new_shortcuts(found, {"private_attributes": {"test_a.py": 2}}) == []
