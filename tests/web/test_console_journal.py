"""Pages that show what is recorded: a zone, tasks, traces, the journal, and the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.ports.journal import JournalEntry
from ergon_framework.web.application import create_app
from ergon_framework.web.console.capability_page import stretches_of
from ergon_framework.web.console.journal_pages import level_of
from ergon_framework.web.console.zone_page import gate_chip, sentences_of
from tests.web.console_client import ConsoleClient
from tests.web.content import TRACE, fill_calls, fill_jobs, fill_journal, fill_zone, settings_in
from tests.web.test_console_pages import page, rows

pytestmark = pytest.mark.req("ONE:serve")

AT = 1_800_000_000.0
Opened = Callable[..., ConsoleClient]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A client of a server over the settings of the place."""

    def opening(more: str = "") -> ConsoleClient:
        return ConsoleClient(create_app(settings=settings_in(tmp_path, more)))

    return opening


def test_a_zone(opened: Opened, tmp_path: Path) -> None:
    """How far its readers are, its gates and gaps, and what was set aside, without content."""
    fill_zone(tmp_path)
    client = opened()
    assert 'href="/console/zones/plant-a"' in page(client, "/console/zones")
    text = page(client, "/console/zones/plant-a")
    assert "1 fact is set aside." in text
    assert "reader has the most: 2." in text
    assert "Its node is not up" in text
    assert "This zone pulls from no peer" in text
    assert "cannot be read" in text
    assert "hidden" not in text.split('id="quarantine"')[1].split("</section>")[0]
    [row] = rows(client.get("/console/zones/plant-a?format=csv"))
    assert (row["reason"], row["offset"], row["state"]) == ("bad", "1", "quarantined")
    found = client.get("/console/zones/plant-a?format=json").json()
    assert found["consumers"][0]["lag"] == 2
    assert "no such zone" in page(client, "/console/zones/nowhere", 404)


def test_content_of_a_fact_on_request(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where the settings allow it, and the log says who has looked."""
    fill_zone(tmp_path)
    path = "/console/zones/plant-a/quarantine/1"
    text = page(opened(), f"{path}?payloads=true")
    assert "--content --data FOLDER" in text
    assert "object_json" not in text
    assert "fact" not in opened().get(f"{path}?format=json").json()
    client = opened("[server]\npayloads = true")
    assert "object_json" not in page(client, path)
    with caplog.at_level("INFO", "ergon.web.audit"):
        assert "object_json" in page(client, f"{path}?payloads=true")
    assert "local looked at the fact that the zone 'plant-a' had set aside under the id 1" in (
        caplog.text
    )
    assert "set aside under the id 9" in page(client, "/console/zones/plant-a/quarantine/9", 404)


def test_the_journal(opened: Opened, tmp_path: Path) -> None:
    """The newest first, by name, id and source, with links to what it is about."""
    fill_journal(tmp_path)
    client = opened()
    text = page(client, "/console/journal")
    assert text.index("job.dead_lettered") < text.index("worker.started")
    assert "&lt;b&gt;resize" in text
    assert 'href="/console/find?q=w1"' in text
    assert f'href="/console/traces/{TRACE}"' in text
    found = client.get("/console/journal?format=json&name=job&unit=w1").json()
    assert found["filter"] == {"name": "job", "unit": "w1"}
    assert [each["name"] for each in found["items"]] == ["job.dead_lettered"]
    assert len(rows(client.get("/console/journal?format=csv&source=worker"))) == 2
    assert "Nothing that is kept matches" in page(client, "/console/journal?unit=nothing")


def test_traces_and_a_waterfall(opened: Opened, tmp_path: Path) -> None:
    """Each trace with what it begins with; its spans on one axis, the failed one marked."""
    fill_journal(tmp_path)
    client = opened()
    text = page(client, "/console/traces")
    assert f'href="/console/traces/{TRACE}">job.enqueue<' in text
    [row] = rows(client.get("/console/traces?format=csv&failed=true"))
    assert (row["spans"], row["failed"], row["unit"]) == ("3", "1", "w1")
    for asked in (TRACE, TRACE[:8], "w1", "find?q=w1"):
        text = page(client, f"/console/traces/{asked}")
        assert text.count('<svg class="track"') == 3
        assert 'class="s-bad"' in text
        assert "KeyError" in text
    found = client.get(f"/console/traces/{TRACE}?format=json").json()
    assert [(each["depth"], each["left"]) for each in found["items"]] == [
        (0, 0.0),
        (1, 33.33),
        (2, 66.67),
    ]
    assert client.get("/console/find?q=t1").url.path == "/console/traces/t1"
    assert "journal of another machine" in page(client, "/console/traces/nothing", 404)


def test_tasks(opened: Opened, tmp_path: Path) -> None:
    """Those of the settings and those that only a program has, with what came of them."""
    fill_journal(tmp_path)
    client = opened('[tasks.bills]\ntask = "shop.bills:Bills"\nconnectors = []')
    text = page(client, "/console/tasks")
    assert "shop.bills:Bills" in text
    assert "KeyError" in text
    found = {row["name"]: row for row in rows(client.get("/console/tasks?format=csv"))}
    assert (found["orders"]["recorded"], found["orders"]["failed"]) == ("1", "1")
    assert found["bills"]["recorded"] == "0"


def test_where_nothing_is_recorded(opened: Opened) -> None:
    """The pages say so plainly, and what turns it on."""
    client = opened()
    for path in ("journal", "traces", "tasks"):
        assert "ergon worker" in page(client, f"/console/{path}")
    client = opened('[telemetry]\njournal = "none"\nspans = false')
    for path in ("journal", "traces", "tasks"):
        assert "journal = &#34;sqlite:///ergon-journal.db" in page(client, f"/console/{path}") or (
            'journal = "sqlite:///ergon-journal.db' in page(client, f"/console/{path}")
        )
    assert "spans = true" in page(client, "/console/traces")


def test_settings_without_secrets(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value with where it comes from; nothing of a password, wherever it stands."""
    monkeypatch.setenv("ERGON_SERVER__TIMEOUT", "100")
    client = opened(
        '[server]\ntoken = "correct-horse-battery"\nrequests = 7\ntimeout = 100\n'
        "[connectors.shop]\n"
        'type = "postgres"\nurl = "postgresql://ada:hunter2@db/shop"\npassword = "hunter3"'
    )
    given = {"Authorization": "Bearer correct-horse-battery"}
    answer = client.get("/console/settings", headers=given)
    assert answer.status_code == 200
    assert "horse" not in answer.text
    assert "hunter" not in answer.text
    found = client.get("/console/settings?format=json", headers=given).json()
    values = {(row["section"], row["key"]): (row["value"], row["from"]) for row in found["items"]}
    assert values["server", "token"] == ("hidden", "settings")
    assert values["server", "requests"] == ("7", "settings")
    assert values["server", "timeout"] == ("100", "variable")
    assert values["server", "port"] == ("8400", "default")
    assert values["connectors", "shop.password"][0] == "hidden"
    assert values["store", "url"][0].startswith("sqlite:///")


def test_circuits_on_the_axis_of_the_hour(opened: Opened, tmp_path: Path) -> None:
    """Open until half open, half open until closed; one that is still open reaches to now."""

    def entry(at: float, name: str, tenant: str = "acme") -> JournalEntry:
        return JournalEntry(at=at, name=name, source="w", fields={"tenant_id": tenant})

    entries = [
        entry(AT - 1800, "circuit.opened"),
        entry(AT - 900, "circuit.half_opened"),
        entry(AT - 540, "circuit.closed"),
        entry(AT - 360, "circuit.opened", "umbrella"),
    ]
    assert stretches_of(entries, AT) == [
        {"kind": "bad", "left": 50.0, "width": 25.0},
        {"kind": "warn", "left": 75.0, "width": 10.0},
        {"kind": "bad", "left": 90.0, "width": 10.0},
    ]
    fill_journal(tmp_path)
    fill_calls(f"sqlite:///{tmp_path}/work.db")
    client = opened("[server]\ntimeout = 100")
    assert "What circuit and quota did" not in page(client, "/console/providers/rank/snapshot")


def test_a_job_leads_to_its_trace(opened: Opened, tmp_path: Path) -> None:
    """Every page leads to the new ones, and they to each other."""
    fill_jobs(tmp_path)
    text = page(opened(), "/console/jobs/w0")
    for path in ("tasks", "traces", "journal", "settings"):
        assert f'href="/console/{path}"' in text


@pytest.mark.parametrize(
    ("link", "level"),
    [
        ({"sealed": True}, "bad"),
        ({"sealed": False, "epoch_changed": True}, "bad"),
        ({"sealed": False, "mode": "autonomous"}, "warn"),
        ({"sealed": False, "mode": "connected"}, "ok"),
        ({"sealed": False}, "wait"),
    ],
)
def test_how_a_gate_stands(link: dict[str, Any], level: str) -> None:
    """The worst first."""
    assert gate_chip(link).level == level


def test_a_zone_that_everybody_has_read() -> None:
    """There is nothing to do, and the page says so."""
    state = {"alerts": [], "consumers": [{"lag": 0}], "source": "node"}
    assert list(sentences_of(state)) == ["Every consumer has read everything."]
    state["consumers"] = []
    assert "Nobody reads" in next(sentences_of(state))


def test_how_bad_an_entry_is() -> None:
    """By its name, and by a failure that it carries."""
    names = ("job.dead_lettered", "circuit.opened", "circuit.closed", "worker.started")
    found = [level_of(JournalEntry(at=AT, name=name, source="w")) for name in names]
    assert found == ["bad", "warn", "ok", "wait"]
    carried = JournalEntry(at=AT, name="attempt.ended", source="w", fields={"failure": {}})
    assert level_of(carried) == "bad"


def test_a_journal_that_cannot_be_read(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The page says what helps, which is no command of ours, and the log why, once."""
    (tmp_path / "ergon-journal.db").write_bytes(b"no database at all" * 1000)
    client = opened()
    for path in ("journal", "traces", "tasks"):
        text = page(client, f"/console/{path}", 503)
        assert "moved away" in text
        assert "ergon db upgrade" not in text
    assert caplog.text.count("the journal does not answer: ") == 1
    (tmp_path / "ergon-journal.db").unlink()
    fill_journal(tmp_path)
    page(client, "/console/journal")
