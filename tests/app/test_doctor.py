"""Looking at the machine."""

from __future__ import annotations

import importlib.util
import resource
import sqlite3
import tempfile
import tomllib
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.doctor import EXTRAS, examine, wal_reset
from ergon_framework.app.diagnostics.findings import Finding, FindingStatus
from tests.app.workplace import Workplace

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def findings() -> dict[str, Finding]:
    """Everything that was looked at, by its name."""
    return {finding.check: finding for finding in examine()}


def test_this_machine_is_fine(workplace: Workplace) -> None:
    """Every check has a finding, and none of them is bad where the tests run."""
    found = findings()
    assert {"python", "sqlite", "sqlite json", "time zones", "file locks", "settings"} <= set(found)
    assert [each for each in found.values() if each.status is FindingStatus.BAD] == []


def test_what_is_wrong_has_a_remedy(workplace: Workplace) -> None:
    """A finding that is not in order says what to do."""
    assert all(each.remedy for each in findings().values() if each.status is not FindingStatus.OK)


def test_the_extras_are_those_of_the_distribution() -> None:
    """A new extra must be looked for, too."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all"}


def test_a_missing_extra(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a note with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found = findings()["extra otel"]
    assert found.status is FindingStatus.NOTE
    assert found.remedy == "pip install 'ergon-framework[otel]'"


@pytest.mark.parametrize(("version", "status"), [((3, 51, 2), "note"), ((3, 51, 3), "ok")])
def test_the_defect_of_old_sqlite(version: tuple[int, ...], status: str) -> None:
    """It is told as what it is, with what Ergon does about it."""
    found = wal_reset(version)
    assert found.status == status
    assert (status == "ok") != ("Ergon lets one process checkpoint" in found.found)


def test_a_sqlite_that_is_too_old(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without STRICT tables the stores cannot work."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    assert findings()["sqlite"].status is FindingStatus.BAD


def test_few_open_files(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems allow very few by default."""
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, 256))
    assert findings()["open files"].remedy == "ulimit -n 4096"


def test_broken_settings_are_a_finding(workplace: Workplace) -> None:
    """The doctor names the mistake and goes on."""
    workplace.settings("[taks]\n")
    found = findings()["settings"]
    assert found.status is FindingStatus.BAD
    assert "unknown section 'taks'" in found.found


def test_a_check_that_breaks_is_a_finding(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broken check must not hide the others."""

    def broken() -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", broken)
    found = findings()
    assert found["locking"].status is FindingStatus.BAD
    assert "settings" in found


@pytest.mark.req("JOBS:badinput")
def test_executors_and_the_job_store_are_looked_at(tmp_path: Path) -> None:
    """What a worker would refuse is found before it is started."""
    config = tmp_path / "ergon.toml"
    text = '[store]\nurl = "sqlite:///{}"\n[executors.a]\ncommand = ["{}"]\n[jobs]\n{}\n'
    config.write_text(text.format("work.db", "sh", ""), encoding="utf-8")
    found = {finding.check: finding for finding in examine(config)}
    names = ("executor a", "default executor", "job store")
    assert [found[name].status for name in names] == [FindingStatus.OK] * 3
    assert "synced to disk" in found["job store"].found
    text = text.format("missing/work.db", "no-such-program", 'default_executor = "b"')
    config.write_text(text, encoding="utf-8")
    found = {finding.check: finding for finding in examine(config)}
    assert [found[name].status for name in names] == [FindingStatus.BAD] * 3
    assert all(found[name].remedy for name in names)
    assert "job store" not in {each.check for each in examine(config, connects=False)}


@pytest.mark.req("PROVIDERS:badinput", "PROVIDERS:cli")
def test_the_store_of_providers_is_looked_at(tmp_path: Path) -> None:
    """One that does not answer is found before a provider is built."""
    config = tmp_path / "ergon.toml"

    def found(text: str, *, connects: bool = True) -> Finding | None:
        config.write_text(text, encoding="utf-8")
        findings = {each.check: each for each in examine(config, connects=connects)}
        return findings.get("provider store")

    text = '[providers]\nstore = "{}"\n'
    good = found(text.format("sqlite:///calls.db"))
    assert good is not None
    assert (good.status, "on the database's disk" in good.found) == (FindingStatus.OK, True)
    assert (tmp_path / "calls.db").exists()
    for url, told in (
        ("sqlite:///missing/calls.db", "no folder"),
        ("postgresql://u:hush@127.0.0.1:1/base", "127.0.0.1:1"),
        ("mysql://host/name", "no store of the kind"),
    ):
        bad = found(text.format(url))
        assert bad is not None
        assert (bad.status, told in bad.found, bool(bad.remedy)) == (FindingStatus.BAD, True, True)
        assert "hush" not in f"{bad}"
    assert found(text.format("sqlite:///missing/calls.db"), connects=False) is None
    assert found("[providers]\n") is None
    shared = found('[store]\nurl = "redis://127.0.0.1:1/0"\n[providers]\n')
    assert shared is not None
    assert (shared.status, "does not keep provider calls" in shared.found) == (
        FindingStatus.BAD,
        True,
    )


@pytest.mark.req("ONE:settings")
def test_the_own_store_of_a_provider_is_looked_at(tmp_path: Path) -> None:
    """Each by the name of the provider that has it."""
    config = tmp_path / "ergon.toml"
    provider = 'provider = "ergon_framework.providers.synthetic:SyntheticProvider"'
    stores = ("sqlite:///calls.db", "sqlite:///missing/calls.db")
    tables = (f'[providers.p{n}]\n{provider}\nstore = "{url}"\n' for n, url in enumerate(stores))
    config.write_text("".join(tables), encoding="utf-8")
    found = {each.check: each.status for each in examine(config)}
    assert found["provider store of p0"] is FindingStatus.OK
    assert found["provider store of p1"] is FindingStatus.BAD
    assert "provider store" not in found
