"""The first moments of a move into a file: what it makes is refused from before it is made."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from ergon_framework.app.move.endpoints import Asked
from ergon_framework.app.move.run import run_all
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import open_fact_store, open_facts
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import MoveState, move_state_of
from ergon_framework.storage.failpoints import armed
from ergon_framework.storage.incoming import Announcement, refuse_incoming
from tests.app.move.stock import ZONE, add, append, ergon, moved, with_jobs

pytestmark = pytest.mark.req("SCALE:move")

FIRST = ("move.incoming.marked", "move.target.made")


def killed(*command: str, at: str) -> None:
    """Run a command that dies at a failpoint."""
    died = ergon(*command, failpoints=f"{at}=kill")
    assert died.returncode == -signal.SIGKILL, died.stderr


def notes_in(folder: Path) -> list[Path]:
    """What moves have left beside files."""
    return [each for each in folder.rglob("*") if ".incoming" in each.name]


def expected(run: int) -> MoveState:
    """What a run of a move refuses files with."""
    return MoveState("jobs of elsewhere", token=f"run {run}")


@pytest.mark.slow
@pytest.mark.parametrize("step", FIRST)
def test_a_file_of_jobs_takes_none_before_it_is_marked(step: str, tmp_path: Path) -> None:
    """The old store goes on, and the same command brings along what came there."""
    old, new = (with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a")), "new.db")
    target = f"sqlite:///{tmp_path}/{new}"
    killed("move", old, target, "--shut", at=step)
    (tmp_path / "link").symlink_to(tmp_path)
    for url in (target, f"sqlite:///{tmp_path}/link/{new}"):
        with pytest.raises(StoreError, match="a move into this store has not ended"):
            open_store(url)
    with closing(open_store(old)) as store:
        add(store, "b")
    moved(old, target, shuts=True)
    with closing(open_store(target)) as store:
        assert [job.id for job in store.search(Search())] == ["b", "a"]
    assert not notes_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("step", FIRST)
def test_a_folder_of_facts_takes_none_before_it_is_marked(
    step: str, zone: Path, tmp_path: Path
) -> None:
    """A node that begins there would give offsets that the old one gives, too."""
    new = tmp_path / "new" / "zone"
    killed("move", str(zone), str(new), at=step)
    with pytest.raises(StoreError, match="a move into this store has not ended"):
        LocalZone.open(ZONE, ZoneSettings(data=str(new))).close()
    with closing(open_facts(ZONE, ZoneSettings(data=str(zone)))) as store:
        append(store, "b")
    moved(zone, new)
    assert not notes_in(tmp_path)
    with closing(open_facts(ZONE, ZoneSettings(data=str(new)))) as store:
        assert [log.head for log in store.logs()] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("step", FIRST)
def test_a_file_that_is_imported_takes_nothing_before_it_is_marked(
    step: str, tmp_path: Path
) -> None:
    """The same command goes on."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    file, new = str(tmp_path / "jobs.jsonl"), f"sqlite:///{tmp_path}/new.db"
    exported = ergon("export", old, file)
    assert exported.returncode == 0, exported.stderr
    killed("import", file, new, at=step)
    with pytest.raises(StoreError, match="an import into this store has not ended"):
        open_store(new)
    again = ergon("import", file, new)
    assert again.returncode == 0, again.stderr
    with closing(open_store(new)) as store:
        assert [job.id for job in store.search(Search())] == ["a"]
    assert not notes_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_url", "redis_url"])
def test_jobs_on_a_server_are_refused_from_when_their_store_is_made(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The old store goes on, and the same command brings along what came there."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    new = request.getfixturevalue(server)
    killed("move", old, new, "--shut", at="move.target.made")
    with pytest.raises(StoreError, match="a move into this store has not ended"):
        open_store(new)
    with closing(open_store(old)) as store:
        add(store, "b")
    moved(old, new, shuts=True)
    with closing(open_store(new)) as store:
        assert [job.id for job in store.search(Search())] == ["b", "a"]


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres_url", "nats_url"])
def test_facts_on_a_server_are_refused_from_when_their_store_is_made(
    server: str, zone: Path, request: pytest.FixtureRequest
) -> None:
    """A node that begins there would give offsets that the old one gives, too."""
    new = request.getfixturevalue(server)
    killed("move", str(zone), new, at="move.target.made")
    with pytest.raises(StoreError, match="a move into this store has not ended"):
        open_facts(ZONE, ZoneSettings(store=SecretStr(new)))
    with closing(open_facts(ZONE, ZoneSettings(data=str(zone)))) as store:
        append(store, "b")
    moved(zone, new, zone=ZONE)
    with closing(open_facts(ZONE, ZoneSettings(store=SecretStr(new)))) as store:
        assert [log.head for log in store.logs()] == [2]


@pytest.mark.slow
def test_a_refused_move_leaves_a_server_open(zone: Path, tmp_path: Path, postgres_url: str) -> None:
    """What was made for it there may be used for anything else then."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    new = StoreLocation(postgres_url)
    with closing(open_fact_store(postgres_url, zone=ZONE)) as store:
        append(store, "other")
    several = [Asked(StoreLocation(str(zone)), new, zone=ZONE), Asked(StoreLocation(old), new)]
    with pytest.raises(StoreError, match="holds facts already"):
        run_all(several, lambda _: None)
    with closing(open_store(postgres_url)) as jobs:
        assert move_state_of(jobs) == MoveState()
        add(jobs, "other")


def test_a_refused_move_leaves_nothing_beside_a_file(jobs: str, tmp_path: Path) -> None:
    """The file may be used for anything else then."""
    moved(jobs, f"sqlite:///{tmp_path}/first.db", shuts=True)
    with pytest.raises(StoreError, match="was moved to"):
        moved(jobs, f"sqlite:///{tmp_path}/second.db")
    assert not notes_in(tmp_path)
    open_store(f"sqlite:///{tmp_path}/second.db").close()


def test_a_refused_move_leaves_what_a_killed_one_left(tmp_path: Path) -> None:
    """The file may have been made by it."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    new = f"sqlite:///{tmp_path}/new.db"
    with armed("move.target.made=error"), pytest.raises(OSError, match="was told to fail"):
        moved(old, new)
    assert not notes_in(tmp_path)  # it could still see to that
    Announcement(expected(1)).announce([tmp_path / "new.db"])
    empty = StoreLocation(f"sqlite:///{tmp_path}/empty.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigurationError, match="nothing of Ergon is there"):
        run_all([Asked(empty, StoreLocation(new))], lambda _: None)
    with pytest.raises(StoreError, match="has not ended"):
        open_store(new)
    moved(old, new)
    assert not notes_in(tmp_path)


def test_a_mark_stays_in_force_while_it_is_written_anew(tmp_path: Path) -> None:
    """A move that goes on announces the same files, in any order, and may die on the way again."""
    files = [tmp_path / "a.db", tmp_path / "b.db"]
    Announcement(expected(1)).announce(files)
    for n, step in enumerate(("noted", "marked"), 2):
        with armed(f"move.incoming.{step}=error"), pytest.raises(OSError, match="told to fail"):
            Announcement(expected(n)).announce(files[::-1])
        for each in files:
            with pytest.raises(StoreError, match="has not ended"):
                refuse_incoming(each, MoveState())


def test_a_note_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With the folder and what to see to, and nothing is left half written."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    (tmp_path / "new.db.incoming.new").mkdir()
    with pytest.raises(StoreUnavailableError, match=r"new\.db\.incoming cannot be written"):
        moved(old, f"sqlite:///{tmp_path}/new.db")
    assert not (tmp_path / "new.db").exists()
    open_store(old).close()


def test_a_store_is_not_moved_into_another_name_of_its_file(tmp_path: Path) -> None:
    """Neither a hard link nor a link, however its folder is written."""
    old = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("a"))
    os.link(tmp_path / "old.db", tmp_path / "hard.db")
    (tmp_path / "soft.db").symlink_to(tmp_path / "old.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("hard.db", "soft.db", "folder/old.db", "folder/hard.db", "../{}/old.db"):
        target = f"sqlite:///{tmp_path}/{name.format(tmp_path.name)}"
        with pytest.raises(ConfigurationError, match="cannot be moved into itself"):
            moved(old, target)


def test_a_zone_is_not_moved_into_another_name_of_its_folder(zone: Path, tmp_path: Path) -> None:
    """Nor into a folder whose facts are a hard link to its own."""
    other = tmp_path / "other"
    other.mkdir()
    os.link(zone / "facts.db", other / "facts.db")
    (tmp_path / "link").symlink_to(zone)
    for target in (other, tmp_path / "link"):
        with pytest.raises(ConfigurationError, match="cannot be moved into itself"):
            moved(zone, target)
    shutil.rmtree(other)
