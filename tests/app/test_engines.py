"""``ergon doctor`` on the engines that the settings name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.doctor import examine
from ergon_framework.app.diagnostics.findings import Finding, FindingStatus
from ergon_framework.app.diagnostics.servers import engines_of, examine_engines
from ergon_framework.app.settings import load_settings
from ergon_framework.jobs.store_urls import open_store
from tests.servers.redis import DURABLE, RedisServer
from tests.servers.server import started

pytestmark = pytest.mark.req("SCALE:doctor")

WORKER = '[executors.python]\ncommand = ["true"]\n'


def found(tmp_path: Path, text: str) -> dict[str, Finding]:
    """What the doctor finds about the engines of such settings, by what it looked at."""
    file = tmp_path / "ergon.toml"
    file.write_text(text)
    return {each.check: each for each in examine_engines(load_settings(file, {}))}


def test_a_postgresql_server_is_looked_at(tmp_path: Path, postgres_url: str) -> None:
    """Version, durability, latency and clock; what is unsafe says what to do."""
    seen = found(tmp_path, f'[store]\nurl = "{postgres_url}"\n{WORKER}')
    for what in ("version", "role", "connections", "vacuum", "latency", "clock"):
        assert seen[f"postgresql (jobs) {what}"].status is FindingStatus.OK
    unsafe = seen["postgresql (jobs) durability"]
    assert unsafe.status is FindingStatus.BAD
    assert unsafe.remedy == "set fsync = on"


def test_a_redis_server_is_looked_at(tmp_path: Path, redis_url: str) -> None:
    """One that syncs every write is fine."""
    seen = found(tmp_path, f'[store]\nurl = "{redis_url}"\n{WORKER}')
    assert {each.status for each in seen.values()} == {FindingStatus.OK}
    assert {f"redis (jobs) {what}" for what in ("version", "durability", "latency", "clock")} <= {
        *seen
    }


def test_a_redis_server_that_keeps_nothing_is_unsafe(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """A restart would take every job."""
    seen = found(tmp_path, f'[store]\nurl = "{redis_server.url}"\n{WORKER}')
    assert seen["redis (jobs) durability"].status is FindingStatus.BAD
    assert "appendonly" in seen["redis (jobs) durability"].remedy


def test_a_nats_server_is_looked_at(tmp_path: Path, nats_url: str) -> None:
    """Whether it keeps facts, and how it syncs them."""
    seen = found(tmp_path, f'[zones.plant]\nstore = "{nats_url}"\nlisten = "127.0.0.1:0"\n')
    assert any(check.startswith("nats (zone plant) version") for check in seen)
    assert any("durability" in check for check in seen)
    assert any("latency" in check for check in seen)
    assert any("clock" in check for check in seen)  # although there is no stream yet


def test_objects_are_looked_at(tmp_path: Path, s3_url: str) -> None:
    """Whether the bucket is there, and puts only where nothing is."""
    seen = found(tmp_path, f'[zones.plant]\nobjects = "{s3_url}"\nlisten = "127.0.0.1:0"\n')
    assert any(check.startswith("s3 (zone plant)") for check in seen)
    assert {each.status for each in seen.values()} <= {FindingStatus.OK, FindingStatus.NOTE}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/none", "postgresql (jobs)"),
        ("redis://:hunter2@127.0.0.1:1/0", "redis (jobs)"),
    ],
)
def test_a_server_that_is_away_is_told(tmp_path: Path, url: str, name: str) -> None:
    """With what to look at, and without its password."""
    seen = found(tmp_path, f'[store]\nurl = "{url}"\n{WORKER}')[name]
    assert seen.status is FindingStatus.BAD
    assert seen.remedy
    assert "hunter2" not in json.dumps(seen.to_dict())


def test_an_engine_is_looked_at_once(tmp_path: Path) -> None:
    """However many parts use it."""
    file = tmp_path / "ergon.toml"
    file.write_text(
        '[store]\nurl = "postgresql://db/work"\n[providers]\n'
        '[zones.a]\nlisten = "127.0.0.1:0"\n[zones.b]\nstore = "nats://mq"\n'
        f'objects = "s3://files/b"\nlisten = "127.0.0.1:0"\n{WORKER}'
    )
    assert engines_of(load_settings(file, {})) == {
        "postgresql://db/work": ["jobs", "providers", "zone a"],
        "nats://mq": ["zone b"],
        "s3://files/b": ["zone b"],
    }


def test_the_whole_doctor_speaks_of_engines(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is told to connect to nothing; the store is not looked at a second time."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ergon.toml"
    file.write_text(f'[store]\nurl = "{postgres_url}"\n{WORKER}')
    checks = [each.check for each in examine(file)]
    assert "postgresql (jobs) latency" in checks
    assert "store" not in checks
    assert not any("postgresql" in each.check for each in examine(file, connects=False))


@pytest.mark.parametrize("text", [WORKER, ""])
def test_nobody_waits_longer_for_a_frozen_server_than_was_said(tmp_path: Path, text: str) -> None:
    """However long its store would wait for an answer."""
    file = tmp_path / "ergon.toml"
    with started(lambda: RedisServer(DURABLE)) as server:
        file.write_text(f'[store]\nurl = "{server.url}"\n{text}')
        server.freeze()
        seen = {each.check: each for each in examine(file, timeout=0.2)}
    names = {"redis (jobs)", "job store"} if text else {"redis (store)"}
    late = {name for name, each in seen.items() if "did not answer within 0.2 s" in each.found}
    assert late == names
    assert all(seen[name].status is FindingStatus.BAD and seen[name].remedy for name in names)


@pytest.mark.parametrize("jobs", [WORKER, ""])
def test_no_part_is_in_order_on_an_unsafe_server(
    tmp_path: Path, postgres_url: str, jobs: str
) -> None:
    """Its own row says what an acknowledgement is worth there, and where to look."""
    open_store(postgres_url).close()
    file = tmp_path / "ergon.toml"
    file.write_text(
        f'[store]\nurl = "{postgres_url}"\n[providers]\nstore = "{postgres_url}"\n'
        f'[zones.plant]\ndata = "data"\nstore = "{postgres_url}"\n{jobs}'
    )
    seen = {each.check: each for each in examine(file)}
    for check in ("job store", "provider store", "zone plant"):
        assert (seen[check].status, "durability" in seen[check].remedy) == (
            FindingStatus.NOTE,
            True,
        )
        assert set(seen[check].to_dict()) == {"check", "status", "found", "remedy"}


def test_parts_on_a_safe_server_are_in_order(tmp_path: Path, redis_url: str) -> None:
    """Whatever another server is like."""
    file = tmp_path / "ergon.toml"
    file.write_text(f'[store]\nurl = "{redis_url}"\n{WORKER}')
    assert {each.check: each.status for each in examine(file)}["job store"] is FindingStatus.OK
