"""The commands that ask a zone's node: what they print, what they refuse, their exit codes."""

from __future__ import annotations

import codecs
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.cli import invoke
from ergon_framework.cli.boundary_facts import append_lines
from ergon_framework.cli.boundary_node import NodeClient
from tests.cli.boundary_node import BoundaryCommands, message, running

pytestmark = pytest.mark.req("BOUNDARY:operator")

FACT = [
    "--subject", "batch:7", "--predicate", "step_completed", "--object", '{"step": 4}',
    "--message-id", "m-1-step-4", "--from", "plant-a", "--to", "hq",
]  # fmt: skip


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BoundaryCommands]:
    """The command line, and a node."""
    monkeypatch.chdir(tmp_path)
    settings = ZoneSettings(data=str(tmp_path / "data"), listen="127.0.0.1:0", insecure=True)
    with running(settings) as address:
        yield BoundaryCommands(tmp_path, capsys, monkeypatch, f"http://{address}")


# ---- append -------------------------------------------------------------------------------------


def test_append_from_options(commands: BoundaryCommands) -> None:
    """The answer is the offset; the same again is a duplicate at the same one."""
    first = commands.ask("append", *FACT, "--json")
    assert (first.code, first.err) == (0, "")
    assert (first.json["offset"], first.json["duplicate"]) == (1, False)
    again = commands.ask("append", *FACT, "--label", "line=3", "--correlation-id", "order-9")
    assert again.out.splitlines()[:2] == ["offset     1", "duplicate  yes"]


def test_append_from_a_file_and_from_standard_input(commands: BoundaryCommands) -> None:
    """The document goes to the node as it is."""
    (commands.place / "fact.json").write_bytes(message("m-1"))
    assert commands.ask("append", "fact.json", "--json").json["offset"] == 1
    assert commands.ask("append", "-", "--json", typed=message("m-2")).json["offset"] == 2
    assert commands.ask("append", "--json", typed=message("m-3")).json["offset"] == 3


@pytest.mark.req("BOUNDARY:badinput", "P9")
def test_append_other_content_under_a_used_id(commands: BoundaryCommands) -> None:
    """It is a conflict, told with both digests, and exit code 1."""
    commands.append("m-1")
    answer = commands.ask("append", "--json", typed=message("m-1", value=2))
    assert answer.code == 1
    error = answer.json["error"]
    assert (error["code"], error["details"]["reason"]) == (
        "already_exists",
        "conflicting_duplicate",
    )
    assert answer.err.startswith("error: message_id 'm-1' of zone 'plant-a' stands for other")


@pytest.mark.req("BOUNDARY:badinput", "P3")
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--subject", "batch:7"], 1, "envelope.message_id is missing"),
        ([*FACT, "--object", "{"], 2, "--object is not JSON"),
        ([*FACT, "--object", '{"step": 4, "step": 5}'], 1, "object_json.step is given twice"),
        ([*FACT, "--object", "[1, NaN]"], 1, "object_json"),
        (["--object", "1"], 1, "envelope.message_id is missing"),
        ([*FACT, "--label", "x"], 2, "--label 'x' is not NAME=VALUE"),
        ([*FACT, "--subject", "nothing"], 1, "fact.subject"),
        (["none.json"], 2, "none.json cannot be read: No such file"),
        (["none.json", *FACT], 2, "a file and options were given"),
        (["--batch", *FACT], 2, "a file and options were given"),
    ],
)
def test_append_says_what_is_wrong(
    commands: BoundaryCommands, arguments: list[str], code: int, told: str
) -> None:
    """Each mistake has its message, and nothing is stored."""
    answer = commands.ask("append", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert told in answer.err
    assert commands.ask("status", "--json").json["logs"][0]["head_offset"] == 0


def test_append_asks_for_a_fact_on_a_terminal(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is left waiting for input that was not meant to come."""

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert invoke(["boundary", "append", "--batch", "--url", commands.url]) == 2
    assert "there is no fact" in capsys.readouterr().err


def test_append_many(commands: BoundaryCommands) -> None:
    """One outcome per line, in order; blank lines count as lines and are passed over."""
    lines = message("m-1") + b"\n\n" + message("m-2") + b"\n" + message("m-1") + b"\n"
    answer = commands.ask("append", "--batch", "--json", typed=lines)
    assert answer.code == 0
    assert [(row["line"], row["offset"], row["duplicate"]) for row in answer.json] == [
        (1, 1, False),
        (3, 2, False),
        (4, 1, True),
    ]


@pytest.mark.req("BOUNDARY:badinput")
def test_append_many_of_which_some_are_wrong(commands: BoundaryCommands) -> None:
    """The good ones are stored; a line that is no JSON does not spoil its neighbours."""
    lines = b"\n".join([message("m-1"), b"{no json", b'{"envelope": {}}', b"\xff", message("m-2")])
    answer = commands.ask("append", "--batch", "--json", typed=lines)
    assert answer.code == 1
    assert [row.get("offset") for row in answer.json] == [1, None, None, None, 2]
    assert [row["error"]["code"] for row in answer.json[1:4]] == ["invalid_argument"] * 3
    table = commands.ask("append", "--batch", typed=lines).out.splitlines()
    assert table[0].split() == ["line", "offset", "duplicate", "digest", "problem"]
    assert "invalid_argument: the line is not JSON" in table[2]


@pytest.mark.req("BOUNDARY:badinput")
def test_a_line_that_is_too_much_keeps_no_other_out(commands: BoundaryCommands) -> None:
    """Nested beyond what any reader takes, or larger than the node's requests: that line alone is
    refused, and a mark of the byte order before the first one is passed over.
    """
    deep, depth = message("m-2", value="X"), 100_000
    lines = [
        codecs.BOM_UTF8 + message("m-1"),
        deep.replace(b'"X"', b"[" * depth + b"]" * depth),
        message("m-3", value="x" * 9_000_000),
        message("m-4"),
    ]
    answer = commands.ask("append", "--batch", "--json", typed=b"\n".join(lines))
    assert answer.code == 1
    assert [row.get("offset") for row in answer.json] == [1, None, None, 2]
    told = [row["error"]["details"]["reason"] for row in answer.json[1:3]]
    assert told == ["depth", "body_too_large"]


@pytest.mark.req("BOUNDARY:badinput")
def test_a_request_that_is_too_large_is_sent_in_halves(
    commands: BoundaryCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node may take less at once than the command sends."""
    lines = [message(f"m-{n}-x", value="x" * 200_000) for n in range(60)]
    with closing(NodeClient(url=commands.url)) as node:
        assert append_lines(node, lines, as_json=True, max_bytes=1 << 30) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["offset"] for row in rows] == [*range(1, 61)]


def test_append_many_in_several_requests(commands: BoundaryCommands) -> None:
    """A long file is cut into requests the node takes."""
    sent: list[int] = []

    class Counted(NodeClient):
        def send(self, method: str, body: bytes, *, wait: float = 0.0) -> Any:
            sent.append(len(json.loads(body)["items"]))
            return super().send(method, body, wait=wait)

    with closing(Counted(url=commands.url)) as node:
        assert append_lines(node, map(message, "abcde"), as_json=True, max_items=2) == 0
    assert sent == [2, 2, 1]
    assert commands.ask("status", "--json").json["logs"][0]["head_offset"] == 5


@pytest.mark.req("BOUNDARY:badinput")
def test_append_many_to_a_node_that_is_gone(commands: BoundaryCommands) -> None:
    """Every line that was tried has an outcome, and no more are sent."""
    answer = commands(
        "append", "--batch", "--json", "--url", "http://127.0.0.1:9", typed=message("m")
    )
    assert answer.code == 1
    (row,) = answer.json
    assert (row["line"], row["error"]["code"]) == (1, "unavailable")


# ---- fetch, confirm, lookup ---------------------------------------------------------------------


@pytest.mark.slow
def test_fetch_until_confirmed(commands: BoundaryCommands) -> None:
    """The same page comes again until it is confirmed."""
    commands.append("m-1", "m-2", "m-3")
    assert commands.ask("consumers", "create", "erp").code == 0
    page = commands.ask("fetch", "erp", "--limit", "2", "--json")
    assert [each["offset"] for each in page.json["facts"]] == [1, 2]
    assert page.json["head_offset"] == 3
    table = commands.ask("fetch", "erp", "--limit", "2", "--confirm").out.splitlines()
    assert table[1].split() == ["1", "plant-a", "m-1", "batch:7", "step_completed", "1"]
    assert [each["offset"] for each in commands.ask("fetch", "erp", "--json").json["facts"]] == [3]
    assert commands.ask("confirm", "erp", "3", "--json").json == {"cursor": 3}
    empty = commands.ask("fetch", "erp", "--wait", "0.001", "--confirm", "--json")
    assert (empty.code, empty.json["facts"]) == (0, [])


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:consumer", "BOUNDARY:badinput")
def test_what_nobody_can_read_is_not_confirmed(commands: BoundaryCommands) -> None:
    """With a standard output that was closed from the start, nothing is fetched to be confirmed."""
    commands.append("m-1")
    commands.ask("consumers", "create", "erp")
    command = f"{sys.executable} -m ergon_framework.cli boundary fetch erp --confirm"
    done = subprocess.run(  # noqa: S603 - our own command
        ["sh", "-c", f"{command} --url {commands.url} >&-"],  # noqa: S607 - any shell will do
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "the standard output is closed" in done.stderr) == (2, True)
    assert commands.ask("consumers", "list", "--json").json[0]["cursor"] == 0


@pytest.mark.req("BOUNDARY:badinput")
def test_what_cannot_be_fetched_or_confirmed(commands: BoundaryCommands) -> None:
    """Each refusal names the consumer and ends with exit code 1."""
    missing = commands.ask("fetch", "nobody")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no consumer 'nobody'" in missing.err
    commands.append("m-1")
    commands.ask("consumers", "create", "erp")
    early = commands.ask("confirm", "erp", "1", "--json")
    assert (early.code, early.json["error"]["details"]["reason"]) == (1, "not_served")
    assert commands.ask("confirm", "erp", "-1").code == 2


@pytest.mark.req("C11")
def test_a_held_consumer_is_not_read_by_others(commands: BoundaryCommands) -> None:
    """A lease taken with --holder keeps others off."""
    commands.ask("consumers", "create", "erp")
    assert commands.ask("fetch", "erp", "--holder", "one").code == 0
    other = commands.ask("fetch", "erp", "--holder", "two", "--json")
    assert (other.code, other.json["error"]["code"]) == (1, "aborted")
    (consumer,) = commands.ask("consumers", "list", "--json").json
    assert consumer["holder"] == "one"


def test_facts_that_cannot_be_printed_are_not_confirmed(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirmation waits until the page has really gone out."""
    commands.append("m-1")
    commands.ask("consumers", "create", "erp")

    class Closed:
        def write(self, _text: str) -> int:
            return 0

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        def isatty(self) -> bool:
            return False

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        assert invoke(["boundary", "fetch", "erp", "--confirm", "--url", commands.url]) != 0
    assert commands.ask("consumers", "list", "--json").json[0]["cursor"] == 0


@pytest.mark.req("P14")
def test_lookup(commands: BoundaryCommands) -> None:
    """A known id has its offset, from the node or from the folder; an unknown one exit code 1."""
    commands.append("m-1")
    found = commands.ask("lookup", "plant-a", "m-1", "--json")
    assert (found.code, found.json["offset"], found.json["state"]) == (0, 1, "retained")
    assert (
        commands("lookup", "plant-a", "m-1", "--data", commands.data, "--json").json == found.json
    )
    for missing in (
        commands.ask("lookup", "plant-a", "m-2"),
        commands("lookup", "plant-a", "m-2", "--data", commands.data),
    ):
        assert (missing.code, missing.out) == (1, "")
        assert "no fact with the message_id 'm-2'" in missing.err


# ---- consumers ----------------------------------------------------------------------------------


@pytest.mark.req("C9")
@pytest.mark.slow
def test_consumers(commands: BoundaryCommands) -> None:
    """Create, list, seek and delete."""
    commands.append("m-1", "m-2")
    made = commands.ask("consumers", "create", "erp", "--from", "end", "--optional", "--json")
    assert (made.json["cursor"], made.json["required"]) == (2, False)
    moved = commands.ask("consumers", "seek", "erp", "1", "--reason", "again", "--json")
    assert (moved.json["cursor"], moved.json["before"]) == (1, 2)
    table = commands.ask("consumers", "list").out.splitlines()
    assert table[1].split()[:4] == ["erp", "outbound", "1", "1"]
    assert commands.ask("consumers", "delete", "erp", "--json").json["deleted"] is True
    assert commands.ask("consumers", "list", "--json").json == []


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["delete", "nobody"], "there is no consumer 'nobody'"),
        (["seek", "nobody", "0"], "there is no consumer 'nobody'"),
        (["create", "erp", "--log", "elsewhere"], "there is no log 'elsewhere'"),
        (["create", "a\tb"], "consumer_name must have"),
    ],
)
def test_consumers_that_cannot_be(
    commands: BoundaryCommands, arguments: list[str], told: str
) -> None:
    """The node refuses, the command ends with 1."""
    answer = commands.ask("consumers", *arguments)
    assert (answer.code, answer.out) == (1, "")
    assert told in answer.err


# ---- status, gates, quarantine ------------------------------------------------------------------


def test_status_of_a_sound_zone(commands: BoundaryCommands) -> None:
    """Tables for people, one object for programs, exit code 0."""
    commands.append("m-1")
    commands.ask("consumers", "create", "erp")
    answer = commands.ask("status")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("zone")
    assert answer.out.endswith("no alerts\n")
    assert any(line.split()[:2] == ["outbound", "1"] for line in answer.out.splitlines())
    assert commands.ask("status", "--json").json["zone"] == "plant-a"
    assert commands("status", "--data", commands.data, "--json").json["logs"][0]["head_offset"] == 1


def test_status_with_an_alert(commands: BoundaryCommands) -> None:
    """Exit code 1, and what the alert is."""
    commands.ask("consumers", "create", "zone:hq")
    sealed = commands.ask("seal", "--peer", "hq", "--reason", "audit", "--json")
    assert (sealed.json["peer"], sealed.json["sealed"]) == ("hq", True)
    answer = commands.ask("status")
    assert answer.code == 1
    assert "alert: sealed: sealed for hq: audit\n" in answer.out
    assert commands("status", "--data", commands.data).code == 1
    assert commands.ask("open", "--peer", "hq", "--json").json["sealed"] is False
    assert commands.ask("status").code == 0


@pytest.mark.req("BOUNDARY:badinput")
def test_status_of_a_node_that_does_not_answer(commands: BoundaryCommands) -> None:
    """An unreachable node, and a folder without a zone, are clear errors."""
    gone = commands("status", "--url", "http://127.0.0.1:9")
    assert (gone.code, gone.out) == (1, "")
    assert "cannot connect to http://127.0.0.1:9" in gone.err
    none = commands("status", "--data", str(commands.place / "none"))
    assert (none.code, none.out) == (2, "")
    assert "no zone lives in" in none.err


def test_open_accepts_a_peers_new_store(commands: BoundaryCommands) -> None:
    """The epoch is forgotten, and the frontier starts anew; it needs to know whose."""
    commands.ask("consumers", "create", "zone:hq")
    link = commands.ask("open", "--accept-epoch", "--peer", "hq", "--json").json
    assert (link["epoch"], link["source_offset"]) == (None, 0)
    refused = commands.ask("open", "--accept-epoch")
    assert (refused.code, "whose epoch" in refused.err) == (2, True)


@pytest.mark.req("BOUNDARY:badinput")
def test_an_empty_peer_does_not_mean_all(commands: BoundaryCommands) -> None:
    """An unset variable in a script must not seal or open the whole zone."""
    for verb in ("seal", "open"):
        assert commands.ask(verb, "--peer", "").code == 2
    assert commands.ask("status", "--json").json["links"] == []


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    "command", [["seal"], ["open"], ["open", "--accept-epoch"]], ids=lambda each: each[-1]
)
def test_a_peer_that_the_zone_does_not_have(commands: BoundaryCommands, command: list[str]) -> None:
    """A name mistyped is refused with those that there are; nothing is sealed or remembered."""
    refused = commands.ask(*command, "--peer", "qh")
    assert (refused.code, refused.out) == (1, "")
    assert "plant-a has no peer 'qh'" in refused.err
    assert "name one of its peers: none yet" in refused.err
    commands.ask("consumers", "create", "zone:hq")
    assert "(name one of its peers: hq)" in commands.ask(*command, "--peer", "qh").err
    assert commands.ask(*command, "--peer", "hq").code == 0
    links = commands.ask("status", "--json").json["links"]
    assert "qh" not in [each["peer"] for each in links]


@pytest.mark.req("C10")
@pytest.mark.slow
def test_quarantine(commands: BoundaryCommands) -> None:
    """What was set aside is listed, released and discarded."""
    commands.append("m-1", "m-2")
    commands.ask("consumers", "create", "erp")
    set_aside(commands, 1)
    set_aside(commands, 2)
    items = commands.ask("quarantine", "list", "--json").json
    assert [(item["id"], item["offset"], item["reason"]) for item in items] == [
        (1, 1, "handler_failed"),
        (2, 2, "handler_failed"),
    ]
    assert commands("quarantine", "list", "--data", commands.data, "--json").json == items
    assert commands.ask("quarantine", "release", "1", "--json").json["state"] == "released"
    assert commands.ask("quarantine", "discard", "2", "--reason", "old").code == 0
    states = commands(
        "quarantine", "list", "--state", "all", "--data", commands.data, "--json"
    ).json
    assert [item["state"] for item in states] == ["released", "discarded"]
    assert commands.ask("quarantine", "list", "--consumer", "erp", "--json").json == []
    page = commands.ask("fetch", "erp", "--confirm", "--json").json
    assert [(each["offset"], each["released"]) for each in page["facts"]] == [(1, True)]
    settled = commands.ask("quarantine", "list", "--state", "settled", "--json").json
    assert [item["id"] for item in settled] == [1]


@pytest.mark.req("BOUNDARY:badinput")
def test_quarantined_items_that_are_not_there(commands: BoundaryCommands) -> None:
    """Each is refused by number."""
    for verb in ("release", "discard"):
        answer = commands.ask("quarantine", verb, "5")
        assert (answer.code, answer.out) == (1, "")
        assert "there is no quarantined item 5" in answer.err
    assert commands.ask("quarantine", "list", "--state", "lost").code == 2


def set_aside(commands: BoundaryCommands, offset: int) -> None:
    """Let a consumer give a fact up."""
    commands.ask("fetch", "erp")
    transport = HttpTransport(commands.url)
    body = {"consumer_name": "erp", "offset": offset}
    transport.call("bsfg.v1.BoundaryAdmin/QuarantineFact", json.dumps(body).encode())
    transport.close()


def test_progress_is_for_terminals(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch moves a bar by the lines it has done."""
    moved: list[int] = []

    class Bar:
        def __enter__(self) -> Any:
            return moved.append

        def __exit__(self, *_exc: object) -> None: ...

    monkeypatch.setattr("ergon_framework.cli.boundary_facts.progress", lambda _text: Bar())
    commands.append("m-1", "m-2")
    assert moved == [2]
