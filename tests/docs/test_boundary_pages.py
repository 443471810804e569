"""The pages about the boundary name everything that the code has."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest
import typer

import ergon_framework.boundary as package
from ergon_framework.boundary import LocalZone, ZoneSettings
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.http.responses import STATUS
from ergon_framework.boundary.node.metrics import metrics
from ergon_framework.boundary.node.policy import GROUPS, OPERATIONS
from ergon_framework.cli.commands import app
from ergon_framework.ports.notice import CATALOGUE
from ergon_framework.ports.settings_model import SettingsModel
from ergon_framework.storage import failpoints
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.docs.pages import ROOT

ANSWERED = STATUS.keys() - {"canceled", "unknown"}
"""Codes that a node answers with."""


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_reference_has_every_operation() -> None:
    """Whoever may call an operation finds what it takes."""
    text = page("reference/boundary.md")
    missing = [name for name in OPERATIONS if f"`{name}`" not in text]
    assert missing == ["DeleteObject"]  # it is a request of its own
    assert "`DELETE /v1/objects/" in text


def test_the_groups_of_the_policy_are_as_documented() -> None:
    """A permission that a page does not mention would be a surprise."""
    text = page("howto/connect-two-zones.md")
    for group, operations in GROUPS.items():
        listed = "all of them" if group == "admin" else ", ".join(operations)
        assert f"| `{group}` | {listed} |" in text


def test_the_reference_has_every_code() -> None:
    """Each with its HTTP status."""
    rows = re.findall(r"^\| ([\d, ]+) \| `(\w+)` \|", page("reference/boundary.md"), re.MULTILINE)
    found = {code: status for status, code in rows if str(STATUS.get(code)) in status}
    assert found.keys() == ANSWERED


def test_the_reference_has_every_setting_with_its_default() -> None:
    """A key that nobody documents is one that nobody finds."""
    rows = dict(_rows(page("reference/boundary.md").partition("## Settings")[2]))
    for path, default in _settings(ZoneSettings()):
        name = path.rpartition(".")[2]
        row = rows.get(path, rows.get(name))
        assert row is not None, path
        assert str(default) in row or default in ({}, None), (path, default, row)


def _settings(settings: SettingsModel, prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        path = f"{prefix}{name}"
        found += (
            _settings(value, f"{path}.") if isinstance(value, SettingsModel) else [(path, value)]
        )
    return found


def _rows(text: str) -> list[tuple[str, str]]:
    """Each key of each table of settings, with what stands behind it."""
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*)", text, re.MULTILINE)
    return [(key, row) for keys, row in rows for key in re.findall(r"`([^`]+)`", keys)]


def test_the_reference_has_every_failpoint() -> None:
    """A place where dying is interesting is worth a line."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    text = page("reference/boundary.md")
    names = {name for name in failpoints.NAMES if name.startswith("boundary.")}
    assert names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_page_for_operators_has_every_metric() -> None:
    """A number without a meaning is noise."""
    settings = ZoneSettings(capacity_bytes=1 << 20)
    with LocalZone("plant", MemoryFactStore("plant"), MemoryObjectStore(), settings) as zone:
        zone.certificate_expiry = 0.0
        served = set(re.findall(r"^# TYPE (\w+)", metrics(zone), re.MULTILINE))
    documented = set(re.findall(r"`(bsfg_\w+)`", page("howto/operate-a-zone.md")))
    assert documented == served


def test_the_page_for_operators_has_every_alert() -> None:
    """Whoever is woken finds what to do."""
    source = (ROOT / "src/ergon_framework/boundary/node/status.py").read_text(encoding="utf-8")
    raised = set(re.findall(r"_alert\(\s*\"(\w+)\"", source))
    table = page("howto/operate-a-zone.md").partition("| alert |")[2].partition("\n\n")[0]
    assert raised == set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


@pytest.mark.parametrize("prefix", ["fact.", "quarantine.", "gate.", "link.", "zone."])
def test_the_page_on_telemetry_has_every_notice_of_a_node(prefix: str) -> None:
    """Listeners know what to listen for."""
    text = page("reference/telemetry.md")
    names = [name for name in CATALOGUE if name.startswith(prefix)]
    assert names
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_page_on_the_command_line_names_every_option_of_the_boundary() -> None:
    """Every command of the group, and every option of each."""
    text = page("reference/cli.md").partition("## ergon boundary")[2]
    group: Any = typer.main.get_command(app)
    for words, command in _commands(group.commands["boundary"], "boundary"):
        assert words.split()[-1] in text, words
        for parameter in command.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                longest = max(parameter.opts, key=len)
                assert f"{longest}" in text, (words, parameter.opts)


def _commands(group: Any, words: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        path = f"{words} {name}"
        found += _commands(command, path) if hasattr(command, "commands") else [(path, command)]
    return found
