"""One of each: what all parts need exists once, and the others go there."""

from __future__ import annotations

import ast
import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from ergon_framework.app.probe import probe_server
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.web.application import create_app
from tests.boundary.node.processes import running
from tests.docs.pages import ROOT

pytestmark = pytest.mark.req("ONE:house")

SOURCE = ROOT / "src" / "ergon_framework"


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a module that is no expression, of which there are ten times as many."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


@cache
def imports() -> dict[str, set[str]]:
    """Every module, and whatever it imports, however deep inside."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        names: set[str] = set()
        for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.update([node.module, *(f"{node.module}.{each.name}" for each in node.names)])
        found[file.relative_to(SOURCE).as_posix()] = names
    return found


def users(wanted: str) -> set[str]:
    """The modules that import something."""
    return {module for module, names in imports().items() if wanted in names}


def test_one_settings_loader() -> None:
    """Nobody else reads TOML; a zone's policy is a document of its own, read while it runs.

    A shell waits for a completion, which has no time for the models of the settings.
    """
    assert users("tomllib") == {
        "app/settings/source.py",
        "boundary/node/policy.py",
        "cli/completion.py",
    }


def test_one_way_to_list_things() -> None:
    """Tables are drawn in one place, so every list has --json and looks alike."""
    assert users("rich.table") == {"cli/output.py"}


def test_one_judge() -> None:
    """Whether something is tried again is decided in the core (``tools/source_rules.py``)."""
    assert users("ergon_framework.core.retry.judge") == {
        f"core/{name}.py"
        for name in (
            "drain",
            "provider_call",
            "job",
            "transaction_lifecycle",
            "loop",
            "broker_reconnect",
            "call_redelivery",
            "process_restart",
        )
    }


def test_one_catalogue() -> None:
    """Notices are made with names of one catalogue, and by few."""
    makers = users("ergon_framework.ports.notice.Notice")
    assert {each.split("/")[0] for each in makers} <= {
        "app", "boundary", "connector", "engine", "integrations", "jobs", "ports", "providers",
        "telemetry", "testing",
    }  # fmt: skip


def refusal(url: str) -> dict[str, Any]:
    """What a server says about a path that it does not have."""
    try:
        with urllib.request.urlopen(f"{url}/no/such/place", timeout=20):  # noqa: S310
            raise AssertionError("there is such a place")
    except urllib.error.HTTPError as error:
        with error:
            found: dict[str, Any] = json.load(error)
            return found


async def answer(path: str) -> dict[str, Any]:
    """What the server's application says."""
    transport = httpx.ASGITransport(create_app(MemoryProviderStore()), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        found: dict[str, Any] = (await client.get(path)).json()
        return found


@pytest.mark.slow
def test_one_shape_of_errors_over_http(tmp_path: Path) -> None:
    """A node, a probe and the server refuse in the same words: code, message, details."""
    with running("plant", tmp_path / "data") as node:
        said = [refusal(node.url)]
    with probe_server("127.0.0.1", 0, dict) as port:  # type: ignore[arg-type]
        said.append(refusal(f"http://127.0.0.1:{port}"))
    paths = ("/no/such/place", "/api/v1/provider-health/summary")
    said.extend(asyncio.run(answer(path)) for path in paths)
    assert [list(each) for each in said] == [["code", "message", "details"]] * 4
    assert all(isinstance(each["details"], dict) for each in said)
