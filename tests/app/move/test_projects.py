"""Everything that one program keeps goes to another store, and the settings stay as they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ergon_framework import App
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.cli import invoke
from ergon_framework.errors import SettingsError, StoreError, StoreReadOnlyError
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.jobstore import Search
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from tests.app.move.stock import ergon

pytestmark = pytest.mark.req("SCALE:move")
SETTINGS = """
[store]
url = "sqlite:///work.db"  # the one line

[zones.plant]
data = "plant"
listen = "127.0.0.1:0"
insecure = true
"""


class Rates(ProviderBase):
    """A provider that always answers."""

    provider_name, capability = "rates", "exchange"
    calls = 0

    def _execute_impl(self, **_given: Any) -> dict[str, float]:
        self.calls += 1
        return {"rate": 1.08}


def rates_in(store: str) -> Rates:
    """The provider with a quota that this store keeps."""
    return Rates(store=store, quota=QuotaPolicy(limit=10, period="day"))


def called(rates: Rates) -> int | None:
    """Call the provider once; how many calls are left."""
    told = rates.execute(
        tenant_id="acme",
        campaign_id=None,
        operation="eur",
        payload={},
        context=ProviderExecutionContext(),
    )
    return None if told.quota is None else told.quota.remaining_count


def asked(store: str) -> int | None:
    """Call it once in a process that ends then; how many calls are left."""
    with rates_in(store) as rates:
        return called(rates)


def published(settings: Path, zone: str, n: int) -> int:
    """Publish a fact as a script with these settings does; its offset."""
    with App(config=settings) as app:
        receipt = app.zone(zone).publish("order:1", "counted", {"n": n}, to="hq", id=("counted", n))
    return receipt.offset


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The settings of a program that has done something of everything."""
    file = tmp_path / "ergon.toml"
    file.write_text(SETTINGS)
    store = f"sqlite:///{tmp_path}/work.db"
    with JobClient(store) as client:
        client.enqueue("greet", ["Ada"])
        client.enqueue("greet", ["Alan"], delay=3600)
    assert asked(store) == 9
    assert [published(file, "plant", n) for n in (1, 2)] == [1, 2]
    assert published(file, "lab", 1) == 1  # which the settings do not name
    return file


def rows(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], int]:
    """What was copied, by part and kind, as a program reads it."""
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {(each["part"], each["what"]): each["copied"] for each in told if "what" in each}


@pytest.mark.slow
def test_one_command_and_one_line_take_a_program_to_a_server(
    program: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every zone, the jobs and the provider calls go on where they were."""
    move = ["move", str(program), "--to", postgres_url]
    assert invoke([*move, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f'Then write in {program}:\n\n[store]\nurl = "{postgres_url}"' in told
    assert program.read_text() == SETTINGS
    assert published(program, "plant", 2) == 2  # a trial shuts nothing

    assert invoke([*move, "--json"]) == 0
    copied = rows(capsys)
    assert copied["jobs", "jobs"] == 2
    assert copied["facts of plant", "facts"] == 2
    assert copied["facts of lab", "facts"] == 1
    assert copied["provider calls", "provider rows"] > 0
    assert program.read_text() == SETTINGS  # nothing is rewritten

    with pytest.raises(StoreError, match="moved to"):
        published(program, "plant", 3)
    with pytest.raises(StoreError), JobClient(f"sqlite:///{program.parent}/work.db") as old:
        old.enqueue("greet", ["Grace"])
    assert invoke(move) == 0  # again: nothing to do
    assert "Now write in" in capsys.readouterr().out

    program.write_text(SETTINGS.replace("sqlite:///work.db", postgres_url))
    assert published(program, "plant", 2) == 2  # known by its id
    assert published(program, "plant", 3) == 3
    assert published(program, "lab", 1) == 1
    assert asked(postgres_url) == 8
    with JobClient(postgres_url) as client:
        assert client.store.count(Search()) == 2
    assert invoke(move) == 0
    assert "nothing of" in capsys.readouterr().out

    program.write_text(SETTINGS)  # and back: what was done there would be lost
    assert invoke([*move, "--reopen"]) == 1
    assert "others are" in capsys.readouterr().err
    assert invoke([*move, "--reopen", "--force"]) == 0
    assert "facts of plant, facts of lab, jobs and provider calls" in capsys.readouterr().out
    assert published(program, "plant", 4) == 3


def test_a_part_that_fails_leaves_the_program_where_it_was(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is copied or shut, and when the cause is gone the same command moves everything."""
    target = tmp_path / "new" / "work.db"
    target.parent.mkdir()
    with JobClient(f"sqlite:///{target}") as other:
        other.enqueue("somebody", ["else"])
    move = ["move", str(program), "--to", f"sqlite:///{target}"]
    assert invoke(move) == 1
    assert "holds jobs already" in capsys.readouterr().err
    assert published(program, "lab", 2) == 2  # nothing was shut
    for file in target.parent.glob("work.db*"):
        file.unlink()
    assert invoke([*move, "--json"]) == 0
    assert rows(capsys)["facts of lab", "facts"] == 2
    program.write_text(SETTINGS.replace("work.db", str(target)))
    assert published(program, "lab", 2) == 2
    assert published(program, "plant", 2) == 2  # which has a folder of its own
    assert target.parent.joinpath("ergon.zones", "lab", "facts.db").is_file()


def test_a_script_without_settings_is_moved_by_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be written then is a settings file; a password stays unseen."""
    store = tmp_path / "ergon.db"
    with JobClient(f"sqlite:///{store}") as client:
        client.enqueue("greet")
    target = f"sqlite:///{tmp_path}/other.db"
    assert invoke(["move", str(store), "--to", target]) == 0
    assert f"Now write in a new file ergon.toml, beside {store}" in capsys.readouterr().out
    with pytest.raises(StoreError) as refused, JobClient(f"sqlite:///{store}") as client:
        client.enqueue("greet")
    assert f"under [store] in {tmp_path / 'ergon.toml'}, and" in str(refused.value)
    monkeypatch.chdir(tmp_path)
    assert invoke(["move", "--to", target, "--dry-run"]) == 0
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(below)
    assert invoke(["move", "--to", target, "--dry-run"]) == 0  # as other commands find it
    monkeypatch.chdir(tmp_path)
    secret = "postgresql://ergon:hush@127.0.0.1:1/work"  # noqa: S105 - nobody listens there
    assert invoke(["move", "--to", secret, "--dry-run"]) == 1
    said = capsys.readouterr()
    assert "hush" not in said.out + said.err


def test_what_has_a_store_of_its_own_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line under [store] would not move it; the variable that holds the URL is named."""
    file = tmp_path / "ergon.toml"
    file.write_text(
        '[store]\nurl = "env:ERGON_TEST_MOVE"\n[jobs]\nstore = "sqlite:///jobs.db"\n'
        '[zones.plant]\nstore = "sqlite:///facts.db"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ERGON_TEST_MOVE", f"sqlite:///{tmp_path}/work.db")
        assert invoke(["move", str(file), "--to", f"sqlite:///{tmp_path}/new.db", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["change"].startswith("set the variable ERGON_TEST_MOVE to the URL of ")
    assert [note.partition(" stay")[0] for note in told["notes"]][:2] == [
        "the facts of zone plant",
        "jobs",
    ]
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "x"], "there is neither ergon.toml nor ergon.db here"),
        (["gone.toml", "--to", "sqlite:///x.db"], "there is no file gone.toml"),
        (["sqlite:///x.db", "--to", "sqlite:///y.db"], "FROM is a store or a folder"),
        (["ergon.toml", "x", "--to", "y"], "--to moves every part"),
        (["sqlite:///x.db"], "a move needs a FROM and a TO"),
        (["memory.toml", "--to", "memory://"], "there is no file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before any store is opened."""
    monkeypatch.chdir(tmp_path)
    assert invoke(["move", *arguments]) != 0
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_not_moved_into_its_own_store(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under no name of it, nor for a trial: there is nothing to change in the settings then."""
    (tmp_path / "link").symlink_to(tmp_path)
    os.link(tmp_path / "work.db", tmp_path / "other.db")
    for name in ("work.db", "link/work.db", "other.db"):
        for options in ([], ["--dry-run"]):
            assert (
                invoke(["move", str(program), "--to", f"sqlite:///{tmp_path}/{name}", *options])
                == 2
            )
            assert "cannot be moved into itself" in " ".join(capsys.readouterr().err.split())
    assert published(program, "plant", 3) == 3


def test_facts_in_a_folder_are_not_forgotten_when_the_line_was_changed_first(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zone that is left behind says so, and the same command brings it along."""
    program.write_text(SETTINGS.replace("sqlite:///work.db", "nats://127.0.0.1:1"))
    with pytest.raises(SettingsError, match="zone 'plant' has facts in"):
        published(program, "plant", 3)
    assert invoke(["move", str(program), "--to", "nats://127.0.0.1:1", "--dry-run"]) == 1
    assert "127.0.0.1" in capsys.readouterr().err  # it was on its way there


def test_a_program_that_still_runs_is_told_and_does_nothing(program: Path, tmp_path: Path) -> None:
    """Its provider is not called, for the quota would be spent in two places."""
    old, new = f"sqlite:///{tmp_path}/work.db", f"sqlite:///{tmp_path}/new.db"
    with rates_in(old) as rates, Rates(store=old) as free, JobClient(old) as client:
        assert called(rates) == 8
        assert invoke(["move", str(program), "--to", new]) == 0
        called(free)  # without a quota, a call asks the store for nothing: its record finds out
        assert not free.flush(0.3)
        for use in (lambda: called(rates), lambda: called(free), lambda: client.enqueue("greet")):
            with pytest.raises(StoreReadOnlyError, match=r"was moved to .*new\.db") as told:
                use()
            assert f"`ergon move {program} --to {new} --reopen`" in told.value.remedy
        assert (rates.calls, free.calls) == (1, 1)
        assert invoke(["move", str(program), "--to", new, "--reopen"]) == 0
        assert free.flush(60.0)
        called(free)  # which goes on where it was opened again
    assert invoke(["move", str(program), "--to", new]) == 0
    assert asked(new) == 7


class Moved(NamedTuple):
    """A program of which all parts were moved."""

    file: Path
    work: str
    new: Path
    target: str
    back: list[str]
    """The command that opens all parts again."""

    def point_at_copy(self) -> None:
        """Write the line of the new store into the settings."""
        self.file.write_text(SETTINGS.replace("work.db", f"{self.new}/work.db"))


def moved_whole(home: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    """A program with a job, a call and a fact, moved from its own folder."""
    home.mkdir()
    new.mkdir()
    file, work = home / "ergon.toml", f"sqlite:///{home}/work.db"
    file.write_text(SETTINGS)
    with JobClient(work) as client:
        client.enqueue("greet", ["Ada"])
    asked(work)
    published(file, "lab", 1)
    monkeypatch.chdir(home)
    assert invoke(["move", "ergon.toml", "--to", f"sqlite:///../{new.name}/work.db"]) == 0
    monkeypatch.chdir(home.parent)
    target = f"sqlite:///{home}/../{new.name}/work.db"
    return Moved(file, work, new, target, ["move", str(file), "--to", target, "--reopen"])


@pytest.mark.parametrize("folder", ["plain", "with a blank"])
def test_a_part_is_opened_again_with_the_whole_program(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One part alone would be worked with here and there; every hint names the whole, and works."""
    home = tmp_path / folder
    moved = moved_whole(home, tmp_path / "the new one", monkeypatch)
    file, work, new, target, back = moved
    for use in (
        lambda: published(file, "lab", 2),
        lambda: asked(work),
        lambda: JobClient(work),
    ):
        with pytest.raises(StoreError, match="moved to") as told:
            use()
        [hint] = re.findall("`ergon (move [^`]*)`", str(told.value.remedy))
        assert shlex.split(hint) == back
    capsys.readouterr()
    for alone in (
        [work, target],
        [str(home / "ergon.zones" / "lab"), str(new / "ergon.zones" / "lab")],
    ):
        for force in ([], ["--force"]):
            assert invoke(["move", *alone, "--reopen", *force]) == 1
            assert f"ergon {shlex.join(back)}" in capsys.readouterr().err
    moved.point_at_copy()
    assert invoke(back) != 0  # the settings do not tell any more what was shut
    assert f'url = "{work}"' in capsys.readouterr().err
    file.write_text(f'{SETTINGS}\n[zones.lab]\nstore = "sqlite:///lab.db"\n')
    assert invoke(back) == 1
    assert f"facts of lab of {home}/ergon.zones/lab/facts.db, which" in capsys.readouterr().err
    file.write_text(SETTINGS)
    assert invoke(back) == 0
    assert published(file, "lab", 2) == 2


def test_the_copy_is_shut_once_the_whole_program_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever names the copy is told which line to write, and which command moves all again."""
    moved = moved_whole(tmp_path / "with a blank", tmp_path / "the new one", monkeypatch)
    file, work, _, target, back = moved
    assert invoke(back) == 0
    with pytest.raises(StoreError, match="moved to") as told, JobClient(target):
        pass
    [hint] = re.findall("`ergon (move [^`]*)`", str(told.value.remedy))
    assert shlex.split(hint) == back[:-1]
    assert "once that line is under [store]" in str(told.value.remedy)
    moved.point_at_copy()
    with pytest.raises(StoreError, match="moved to") as told:
        published(file, "lab", 2)
    assert f'write url = "{work}" under [store]' in str(told.value.remedy)
    capsys.readouterr()
    the_other_way = ["move", str(file), "--to", work, "--reopen"]
    for wrong in (back[:-1], the_other_way, [*the_other_way, "--force"]):
        assert invoke(wrong) == 1
        refused = capsys.readouterr().err
        assert f'write url = "{work}" under [store]' in refused
        assert f"`ergon {hint}`" in refused
        assert "--force" not in refused
    with pytest.raises(StoreError, match="moved to"), JobClient(target):
        pass
    file.write_text(SETTINGS)
    assert invoke(shlex.split(hint)) == 0
    with JobClient(target) as client:
        assert client.store.count(Search()) == 1


@pytest.mark.slow
def test_a_command_that_is_killed_between_two_parts_goes_on(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zone that was moved already says where it is; the same command moves the rest."""
    target = tmp_path / "new" / "work.db"
    target.parent.mkdir()
    move = ["move", str(program), "--to", f"sqlite:///{target}"]
    killed = ergon(*move, failpoints="move.rows.before=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(StoreError, match="moved to"):
        published(program, "lab", 2)
    with JobClient(f"sqlite:///{tmp_path}/work.db") as client:
        assert client.store.count(Search()) == 2  # the jobs are still there, and open
    assert invoke([*move, "--json"]) == 0
    copied = rows(capsys)
    assert (copied["facts of lab", "facts"], copied["jobs", "jobs"]) == (0, 2)
    program.write_text(SETTINGS.replace("work.db", str(target)))
    assert published(program, "lab", 2) == 2


@pytest.mark.slow
def test_a_zone_that_was_shut_for_another_place_is_not_left_out(
    program: Path, postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest alone would begin an empty log in the new place; the command says what to do."""
    killed = ergon(
        *("move", str(program), "--to", postgres_url), failpoints="move.rows.before=kill"
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    other = tmp_path / "other" / "work.db"
    other.parent.mkdir()
    told = ""
    for move in (["--dry-run"], [], ["--reopen"]):
        assert invoke(["move", str(program), "--to", f"sqlite:///{other}", *move]) == 1
        told = capsys.readouterr().err
        place = StoreLocation(postgres_url).name
        assert f"zone plant were moved to {place}" in told
        assert f"ergon move {program} --to {shlex.quote(place)} --reopen" in told
    assert list(other.parent.iterdir()) == []
    pasted = re.compile(r"  ergon (move .*?)(?:;|\)$)", re.MULTILINE)
    go_on, back = pasted.findall(told)
    assert invoke(shlex.split(back)) == 0
    assert published(program, "plant", 3) == 3
    assert invoke(shlex.split(go_on)) == 0
    with pytest.raises(StoreError, match="moved to"):
        published(program, "plant", 4)


@pytest.mark.slow
def test_a_zone_that_was_shut_for_another_folder_is_not_left_out(
    program: Path, postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What opens it again is the command of the whole program, of which the zone is a part."""
    target = tmp_path / "new" / "work.db"
    target.parent.mkdir()
    move = ["move", str(program), "--to", f"sqlite:///{target}"]
    killed = ergon(*move, failpoints="move.rows.before=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    elsewhere = ["move", str(program), "--to", postgres_url]
    assert invoke(elsewhere) == 1
    told = capsys.readouterr().err
    assert "zone lab were moved to" in told
    back = told.rpartition("  ergon ")[2].rstrip(")\n")
    assert shlex.split(back) == [*move, "--reopen"]
    assert invoke(shlex.split(back)) == 0
    assert invoke(elsewhere) == 0


@pytest.mark.slow
def test_a_program_is_reopened_as_a_whole_or_not_at_all(
    program: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zones that are as they were stay shut, too, when a job came into the new store."""
    move = ["move", str(program), "--to", postgres_url]
    assert invoke(move) == 0
    with JobClient(postgres_url) as client:
        client.enqueue("greet", ["Grace"])
    assert invoke([*move, "--reopen"]) == 1
    assert "others are 1 jobs" in capsys.readouterr().err
    for zone in ("plant", "lab"):
        with pytest.raises(StoreError, match="moved to"):
            published(program, zone, 3)
    assert invoke([*move, "--reopen", "--force"]) == 0
    assert published(program, "plant", 3) == 3


@pytest.mark.slow
def test_a_part_that_fails_on_the_way_opens_the_zones_again(program: Path, tmp_path: Path) -> None:
    """The zones had been shut when the jobs' turn came; the new store stays refused.

    Once one part may be worked with over there, none is opened here: it would be in two places.
    """
    (tmp_path / "new").mkdir()
    target = f"sqlite:///{tmp_path}/new/work.db"
    failed = ergon("move", str(program), "--to", target, failpoints="move.rows.before=error")
    assert failed.returncode not in (0, -signal.SIGKILL), failed.stderr
    assert published(program, "lab", 2) == 2
    with pytest.raises(StoreError, match="has not ended"), JobClient(target) as client:
        client.enqueue("greet", ["Grace"])
    late = ergon("move", str(program), "--to", target, failpoints="move.part.ended=error")
    assert late.returncode not in (0, -signal.SIGKILL), late.stderr
    there = program.with_name("there.toml")
    there.write_text(SETTINGS.replace("work.db", str(tmp_path / "new" / "work.db")))
    assert published(there, "lab", 3) == 3
    with pytest.raises(StoreError, match="moved to"):
        published(program, "lab", 3)
    with pytest.raises(StoreError), JobClient(f"sqlite:///{tmp_path}/work.db") as client:
        client.enqueue("greet", ["Grace"])
    rest = ergon("move", str(program), "--to", target)
    assert rest.returncode == 0, rest.stderr
    with JobClient(target) as client:
        assert client.store.count(Search()) == 2


def assert_takes_nothing(url: str) -> None:
    """A store whose move has not ended takes no job and no provider call."""
    with pytest.raises(StoreError, match="has not ended"), JobClient(url) as client:
        client.enqueue("greet", ["Grace"])
    with pytest.raises(StoreError, match="has not ended"):
        asked(url)


@pytest.mark.slow
def test_a_new_store_is_refused_until_all_of_the_program_is_there(
    program: Path, postgres_url: str, tmp_path: Path
) -> None:
    """Wherever the command is killed, and the same command goes on."""
    move = ["move", str(program), "--to", postgres_url]
    there = program.with_name("there.toml")
    there.write_text(SETTINGS.replace("sqlite:///work.db", postgres_url))

    def killed_at(place: str) -> None:
        killed = ergon(*move, failpoints=f"{place}=kill")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert_takes_nothing(postgres_url)
        with pytest.raises(StoreError, match="has not ended"):
            published(there, "lab", 2)

    def is_refused(zone: str) -> bool:
        try:
            return published(there, zone, 3) == 0
        except StoreError as error:
            return "has not ended" in str(error)

    began = ergon(*move, failpoints="move.part.begun=kill")  # the jobs are marked, and no zone is
    assert began.returncode == -signal.SIGKILL, began.stderr
    elsewhere = tmp_path / "elsewhere" / "ergon.toml"  # a machine without the folders of the zones
    elsewhere.parent.mkdir()
    elsewhere.write_text(there.read_text())
    for zone in ("plant", "lab"):
        with pytest.raises(StoreError, match="has not ended"):
            published(elsewhere, zone, 2)
    node = ergon("run", "zones.plant", "--config", str(elsewhere))
    assert (node.returncode, "has not ended" in node.stderr) == (1, True)
    killed_at("move.rows.before")  # all zones are copied, and nothing else
    assert is_refused("plant")
    killed_at("move.part.ended")  # the first zone is open, and worked with
    assert not is_refused("plant")
    ended = ergon(*move)
    assert ended.returncode == 0, ended.stderr
    assert published(there, "lab", 2) == 2
    assert published(there, "plant", 3) == 3
    assert asked(postgres_url) == 8
    with JobClient(postgres_url) as client:
        assert client.store.count(Search()) == 2


@pytest.mark.slow
def test_no_zone_is_used_beside_a_new_store_that_was_only_begun(
    program: Path, tmp_path: Path
) -> None:
    """Nor anything else there, whichever way the program names it."""
    new = tmp_path / "new"
    new.mkdir()
    url = f"sqlite:///{new}/work.db"
    move = ["move", str(program), "--to", url]
    there = new / "ergon.toml"
    there.write_text(SETTINGS.replace("work.db", str(new / "work.db")))
    lab = str(new / "ergon.zones" / "lab")
    address = ("--insecure", "--listen", "127.0.0.1:0")
    for step in ("move.incoming.marked=kill", "move.part.begun=kill"):
        assert ergon(*move, failpoints=step).returncode == -signal.SIGKILL
        assert_takes_nothing(url)
        with pytest.raises(StoreError, match="a move into this store has not ended"):
            published(there, "lab", 2)
        with (
            App(url) as app,
            pytest.raises(StoreError, match="a move into this store has not ended"),
        ):
            app.zone("lab").publish("work_order:1", "released", to="enterprise", id=("r", 1))
        for words in (["--zone", "lab", "--data", lab], ["--zone", "lab", "--config", str(there)]):
            node = ergon("boundary", "serve", *words, *address)
            assert node.returncode == 1
            assert "a move into this store has not ended" in node.stderr
        assert published(program, "lab", 2) == 2
    assert invoke(move) == 0
    assert published(there, "lab", 2) == 2
    assert not list(new.rglob("*.incoming*"))


@pytest.mark.slow
def test_a_node_of_a_moved_zone_ends_at_once(program: Path, tmp_path: Path) -> None:
    """It is not started again and again: the settings have to name the new place first."""
    assert invoke(["move", str(tmp_path / "plant"), str(tmp_path / "new"), "--shut"]) == 0
    settings = ("--config", str(program))
    for words in (("run", "zones.plant"), ("run", "--all"), ("boundary", "serve")):
        ended = ergon(*words, *settings)
        assert ended.returncode == 2, ended.stderr
        assert "zone plant was moved to" in ended.stderr
        assert f'write data = "{tmp_path / "new"}" under [zones.plant]' in ended.stderr
        assert "started again" not in ended.stdout


@pytest.mark.slow
def test_jobs_of_a_new_store_are_refused_while_the_first_zone_is_copied(
    program: Path, postgres_url: str
) -> None:
    """A job that was added there meanwhile would stop the move when the jobs' turn comes."""
    move = ["move", str(program), "--to", postgres_url]
    killed = ergon(*move, failpoints="move.part.copied=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert_takes_nothing(postgres_url)
    assert invoke(move) == 0
