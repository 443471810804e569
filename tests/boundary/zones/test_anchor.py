"""A store that went back in time begins a new epoch, and somebody is told."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.anchor import FILE, Anchor
from ergon_framework.boundary.backup import open_read_only
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.verification import VerificationFinding, verified
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError
from tests.boundary.node.processes import ADMIN, NodeProcess
from tests.cli.boundary_node import message
from tests.local_users import GROUP, WEB, WORKER, acting_as, mode_of, needs_root, shared_folder

pytestmark = pytest.mark.req("BOUNDARY:node", "BOUNDARY:zones")


def opened(folder: Path, **more: Any) -> LocalZone:
    """The zone in a folder."""
    return LocalZone.open("plant-a", ZoneSettings.model_validate({"data": str(folder), **more}))


def fill(zone: LocalZone, *ids: str) -> None:
    """Facts."""
    for each in ids:
        whole = json.loads(message(each))
        zone.append(whole["envelope"], whole["fact"])


def head(zone: LocalZone) -> int:
    """Of the outbound log."""
    return zone.store.logs()[0].head


def alerts(zone: LocalZone) -> list[str]:
    """Which there are."""
    return [each["kind"] for each in status(zone)["alerts"]]


def older(folder: Path) -> Callable[[], None]:
    """Keep the file as it is now; what is returned puts it back in its place."""
    kept = folder.parent / "older.db"
    with (
        closing(sqlite3.connect(folder / "facts.db")) as source,
        closing(sqlite3.connect(kept)) as copy,
    ):
        source.backup(copy)

    def restore() -> None:
        for end in ("-wal", "-shm"):
            (folder / f"facts.db{end}").unlink(missing_ok=True)
        shutil.copyfile(kept, folder / "facts.db")

    return restore


def test_a_head_below_the_anchor_means_a_new_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever read beyond it notices; the operator has an alert, the log a line, once."""
    folder = tmp_path / "data"
    with opened(folder) as zone:
        fill(zone, "a", "b")
        epoch = zone.store.info().epoch
        restore = older(folder)
        fill(zone, "c", "d")
        assert alerts(zone) == []
    restore()
    with caplog.at_level(logging.WARNING), opened(folder) as zone:
        assert head(zone) == 2
        renewed = zone.store.info().epoch
        assert renewed != epoch
        assert alerts(zone) == ["new_epoch"]
        assert "outbound ends at 2 and ended at 4" in status(zone)["new_epoch"]
        assert zone.store.journal()[0][1] == "new_epoch"
        fill(zone, "e")
    with opened(folder) as zone:  # as often as one likes, it stays that
        assert (head(zone), zone.store.info().epoch) == (3, renewed)
    assert caplog.text.count("begins a new epoch: it has lost what it acknowledged") == 1


def test_a_store_that_lost_nothing_keeps_its_epoch(tmp_path: Path) -> None:
    """However it ended, and whether there is an anchor already or not."""
    folder = tmp_path / "data"
    with opened(folder) as zone:
        epoch = zone.store.info().epoch
        fill(zone, "a")
    (folder / FILE).unlink()  # as versions before this one left it
    for _ in range(2):
        with opened(folder) as zone:
            assert (head(zone), zone.store.info().epoch) == (1, epoch)
            assert alerts(zone) == []


def test_a_torn_anchor_is_the_one_before(tmp_path: Path) -> None:
    """A machine that stops while one slot is written leaves the other."""
    with closing(Anchor(tmp_path)) as anchor:
        anchor.begin("e", {"outbound": 1})
        anchor.reached("outbound", 2)
        anchor.reached("outbound", 3)
    place = anchor.path
    data = bytearray(place.read_bytes())
    at = data.index(b'"outbound":3')
    data[at] ^= 1
    place.write_bytes(bytes(data))
    with closing(Anchor(tmp_path)) as anchor:
        assert anchor.now.heads == {"outbound": 2}
        assert anchor.lost("e", {"outbound": 2}) == ""
        assert anchor.lost("e", {}) == "outbound ends at 0 and ended at 2"
        assert anchor.lost("other", {}) == ""


def test_an_anchor_is_no_link_and_private(tmp_path: Path) -> None:
    """What lies there under its name is not followed."""
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        Anchor(tmp_path)
    assert caught.value.remedy
    (tmp_path / FILE).unlink()
    Anchor(tmp_path).close()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@needs_root
def test_an_anchor_in_a_folder_for_a_group_is_the_groups() -> None:
    """As all files of the zone: another user of the group runs the node the next time."""
    with shared_folder(0o2770, GROUP) as folder:
        with acting_as(WORKER, GROUP), closing(Anchor(folder)) as anchor:
            anchor.reached("outbound", 5)
        assert mode_of(folder / FILE) == 0o660
        with acting_as(WEB, GROUP), closing(Anchor(folder)) as anchor:
            assert anchor.now.heads["outbound"] == 5
        (folder / FILE).chmod(0o600)  # as an earlier version left it
        with acting_as(WORKER, GROUP):
            Anchor(folder).close()
        assert mode_of(folder / FILE) == 0o660


@pytest.mark.parametrize("kind", ["postgres", "nats"])
def test_a_server_that_went_back_is_noticed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The anchor in the folder of the node's objects says what the server acknowledged."""
    url = request.getfixturevalue(f"{kind}_url")
    with opened(tmp_path, store=url) as zone:
        fill(zone, "a", "b")
        epoch = zone.store.info().epoch
    with closing(Anchor(tmp_path)) as anchor:
        assert anchor.now.heads["outbound"] == 2
        anchor.reached("outbound", 5)  # as if the server had acknowledged more, and lost it
    with opened(tmp_path, store=url) as zone:
        assert zone.store.info().epoch != epoch
        assert "new_epoch" in alerts(zone)


@pytest.mark.parametrize("kind", ["postgres", "nats"])
def test_a_server_that_came_back_empty_is_noticed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A database or stream that was deleted is made anew by the next node, which tells of it. What
    another node has begun, and told of, is not begun again.
    """
    url = request.getfixturevalue(f"{kind}_url")
    with closing(Anchor(tmp_path)) as anchor:
        anchor.begin("gone", {"outbound": 7})
    (tmp_path / "second").mkdir()
    shutil.copy(anchor.path, tmp_path / "second" / FILE)
    with opened(tmp_path, store=url) as zone:
        assert "new_epoch" in alerts(zone)
        told = status(zone)["new_epoch"]
        assert "epoch gone that was there before: outbound ends at 0 and ended at 7" in told
        epoch = zone.store.info().epoch
    with opened(tmp_path / "second", store=url) as zone:
        assert zone.store.info().epoch == epoch


def test_verify_tells_what_is_gone_from_the_end(tmp_path: Path) -> None:
    """The rest of the log fits its hash chain; the anchor knows how long it was."""
    folder = tmp_path / "data"
    with opened(folder) as zone:
        fill(zone, "a", "b")
        restore = older(folder)
        fill(zone, "c", "d")
        assert not [each for each in verified(zone) if isinstance(each, VerificationFinding)]
    restore()
    with open_read_only(folder) as zone:
        [found] = [each for each in verified(zone) if isinstance(each, VerificationFinding)]
    assert (found.kind, found.what) == (
        "store",
        "it has lost what it acknowledged: outbound ends at 2 and ended at 4",
    )


@pytest.mark.slow
def test_a_removed_write_ahead_log(tmp_path: Path) -> None:
    """A killed node whose log was removed: the facts in it are gone, and nobody is fooled."""
    node = NodeProcess("plant-a", tmp_path / "a")
    try:
        for n in range(20):
            assert node.append(f"order:{n}:created", n).status == 200
        before = node.ask(f"{ADMIN}GetStatus", {})
        os.kill(node.pid, signal.SIGKILL)
        node.wait()
        (tmp_path / "a" / "facts.db-wal").unlink()
        node.start()
        after = node.ask(f"{ADMIN}GetStatus", {})
        assert after["logs"][0]["head_offset"] < 20
        assert after["epoch"] != before["epoch"]
        assert "new_epoch" in [each["kind"] for each in after["alerts"]]
    finally:
        node.kill()
