"""One trace from a fact to a provider call: two zones, a task, a worker and an executor."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.storage.journal import SqliteJournal
from tests import fork_server
from tests.app.processes import PATIENCE, SAMPLES, SOURCE
from tests.boundary.node.processes import NodeProcess, running

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:trace")]

HERE = SAMPLES / "one_trace"
ERGON = [sys.executable, "-m", "ergon_framework.cli"]
ORDER = "order-placed:1:v1"
SECRET = "secret-4711"  # noqa: S105
SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
max_attempts = 3
backoff = {{ base = 0.01, cap = 0.02 }}

[executors.python]
command = [{python!r}, "-m", "ergon_framework.executor", "--app", "pipeline:registry"]

[connectors.facts]
type = "ergon_framework.connector.boundary:BoundaryConnector"
node = {node!r}
consumer = "intake"
log = "inbound:plant"
wait = 20.0

[tasks.intake]
task = "pipeline:Intake"
connectors = ["facts"]

[tasks.intake.consumer.loop]
limit = 1
streaming = true
"""


class Site:
    """A folder with settings, and the processes that use it."""

    def __init__(self, folder: Path, *, has_sdk: bool) -> None:
        self.folder = folder
        self.journal = folder / "ergon-journal.db"
        self.spans = folder / "spans"
        self.spans.mkdir()
        (folder / "markers").mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{SOURCE}",
            "JOBS": f"sqlite:///{folder}/work.db",
            "MARKERS": str(folder / "markers"),
            "SPANS": str(self.spans) if has_sdk else "",
        }

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command to its end; what it printed."""
        done = fork_server.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def exported(self) -> list[dict[str, Any]]:
        """The spans that all exporters held at the end of their processes."""
        texts = [file.read_text(encoding="utf-8") for file in self.spans.iterdir()]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def kept(self, unit: str) -> list[Any]:
        """The spans of the unit's only trace in the journal."""
        with SqliteJournal(self.journal, read_only=True) as journal:
            (trace_id,) = journal.traces_of(unit)
            return journal.trace(trace_id)


@pytest.fixture(params=["sdk", pytest.param("trail", marks=pytest.mark.campaign)])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site where everything has happened, and all processes have ended."""
    made = Site(tmp_path, has_sdk=request.param == "sdk")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ergon.toml").write_text("", encoding="utf-8")
    with ExitStack() as stack:
        plant = stack.enter_context(running("plant", tmp_path / "plant"))
        office = stack.enter_context(
            running("office", tmp_path / "office", "--peer", f"plant={plant.url}")
        )
        (tmp_path / "ergon.toml").write_text(
            SETTINGS.format(python=sys.executable, node=office.url), encoding="utf-8"
        )
        made.run(sys.executable, str(HERE / "pipeline.py"), plant.url, ORDER)
        made.run(*ERGON, "run", "intake")
        made.run(*ERGON, "worker", "--burst", "--name", "w1")
        stopped(plant, office)
    return made


def stopped(*nodes: NodeProcess) -> None:
    """Ask them to stop, as an operator would."""
    assert [node.stop() for node in nodes] == [0] * len(nodes)


def line_of(spans: list[dict[str, Any]], name: str) -> list[list[str]]:
    """For each span of that name, the names from it up to the root."""
    by_id = {span["span_id"]: span for span in spans}
    found = []
    for each in spans:
        if each["name"] == name:
            line, span = [name], each
            while span["parent_id"]:
                span = by_id[span["parent_id"]]
                line.append(span["name"])
            found.append(line)
    return found


def check(spans: list[dict[str, Any]]) -> None:
    """One trace, and each span below what caused it; the retry beside the first attempt."""
    assert len({span["trace_id"] for span in spans}) == 1
    publish = ["boundary.publish"]
    process = ["process.attempt", "process", "start_processing", *publish]
    run = ["job.run", "job.enqueue", *process]
    assert line_of(spans, "boundary.publish") == [publish]
    assert line_of(spans, "boundary.append") == [["boundary.append", *publish]]
    assert line_of(spans, "boundary.pull") == [["boundary.pull", *publish]]
    assert line_of(spans, "start_processing") == [["start_processing", *publish]]
    assert line_of(spans, "job.run") == [run, run]
    assert line_of(spans, "provider.call") == [["provider.call", "rrq.executor", *run]] * 2
    outcomes = [
        span["attributes"].get("rrq.outcome") for span in spans if span["name"] == "job.run"
    ]
    assert outcomes == ["failed", "success"]
    assert SECRET not in json.dumps(spans)


def test_one_trace_from_the_fact_to_the_provider(site: Site) -> None:
    """By the exporters of all processes, and by the journal, which tells the same."""
    kept = [
        {
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "parent_id": span.parent_id,
            "name": span.name,
            "attributes": span.attributes,
        }
        for span in site.kept(ORDER)
    ]
    check(kept)
    if site.environment["SPANS"]:
        (trace_id,) = {span["trace_id"] for span in kept}
        exported = [span for span in site.exported() if span["trace_id"] == trace_id]
        order = {span["span_id"]: place for place, span in enumerate(kept)}
        assert {span["span_id"] for span in exported} == order.keys()
        check(sorted(exported, key=lambda span: order[span["span_id"]]))
    sources = {span.source.split()[0] for span in site.kept(ORDER)}
    assert sources == {"producer", "zone", "task", "worker", "executor"}
    told = site.run(*ERGON, "trace", f"charge-{ORDER}")
    assert "boundary.publish" in told
    assert "provider.call ✗" in told
    assert "not recorded" not in told
    shape = json.loads(site.run(*ERGON, "trace", ORDER, "--json"))
    assert [span["depth"] for span in shape["spans"][:2]] == [0, 1]
    assert SECRET not in told
