"""``/api/v1/boundary``: zones by their nodes, by their folders, and zones that do not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from fastapi import FastAPI

from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.web.application import create_app
from tests.cli.boundary_node import running
from tests.web.content import FREE, fill_zone, settings_in
from tests.web.test_job_routes import get

pytestmark = pytest.mark.req("ONE:serve")


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """An application beside the folder of a zone."""
    fill_zone(tmp_path, facts=3)
    return create_app(settings=settings_in(tmp_path))


def listening(place: Path, address: str) -> Settings:
    """Settings that say where the node is."""
    settings_in(place)
    file = place / "ergon.toml"
    file.write_text(file.read_text().replace(FREE, f'listen = "{address}"'))
    return load_settings(file, {})


def check(app: FastAPI, source: str) -> None:
    """What is told of the zone, whoever tells it."""
    [zone] = get(app, "/api/v1/boundary")["items"]
    assert (zone["zone"], zone["up"], zone["source"]) == ("plant-a", True, source)
    assert (zone["quarantined"], zone["logs"][0]["head_offset"]) == (1, 3)
    [reader] = get(app, "/api/v1/boundary/plant-a/consumers")["items"]
    assert (reader["consumer_name"], reader["lag"]) == ("reader", 2)
    [item] = get(app, "/api/v1/boundary/plant-a/quarantine")["items"]
    assert (item["consumer_name"], item["offset"], item["reason"]) == ("reader", 1, "bad")
    assert "hidden" not in str(item)
    assert get(app, "/api/v1/boundary/plant-a/quarantine", state="released")["items"] == []
    assert get(app, "/api/v1/boundary/plant-a/quarantine", consumer="other")["items"] == []
    assert get(app, "/api/v1/boundary/plant-a/gaps") == {"items": [], "next_cursor": None}


def test_by_its_folder(app: FastAPI) -> None:
    """Nobody knows where such a node listens."""
    check(app, "folder")


def test_by_its_node(tmp_path: Path) -> None:
    """The node is asked where the settings say that it listens."""
    fill_zone(tmp_path, facts=3)
    node = ZoneSettings(data=str(tmp_path / "a"), listen="127.0.0.1:0", insecure=True)
    with running(node) as address:
        check(create_app(settings=listening(tmp_path, address)), "node")


def test_a_node_that_is_away_is_told_by_its_folder(tmp_path: Path) -> None:
    """What is on disk is known without it."""
    fill_zone(tmp_path, facts=3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    check(create_app(settings=listening(tmp_path, f"127.0.0.1:{port}")), "folder")


def test_a_zone_that_does_not_answer(tmp_path: Path) -> None:
    """The list says so, the rest is a 503, and no folder is made."""
    app = create_app(settings=settings_in(tmp_path))
    assert get(app, "/api/v1/boundary")["items"] == [
        {"zone": "plant-a", "up": False, "source": None, "problem": "unavailable"}
    ]
    for name in ("consumers", "quarantine", "gaps"):
        told = get(app, f"/api/v1/boundary/plant-a/{name}", 503)
        assert told["details"]["part"] == "zone:plant-a"
    assert not (tmp_path / "a").exists()


def test_the_folder_of_another_zone_is_not_believed(tmp_path: Path) -> None:
    """It would be told under the wrong name."""
    fill_zone(tmp_path, "plant-b")
    app = create_app(settings=settings_in(tmp_path))
    assert get(app, "/api/v1/boundary")["items"][0]["up"] is False


@pytest.mark.parametrize("name", ["consumers", "quarantine", "gaps"])
def test_a_zone_that_nobody_knows(app: FastAPI, name: str) -> None:
    """It is a 404; so is everything else below a zone."""
    told = get(app, f"/api/v1/boundary/nowhere/{name}", 404)
    assert told["code"] == "not_found"
    assert get(app, "/api/v1/boundary/plant-a/facts", 404)["code"] == "not_found"
    assert (
        get(app, f"/api/v1/boundary/plant-a/{name}", 422, cursor="e30")["code"] == "invalid_request"
    )
