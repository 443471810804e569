"""``ergon boundary policy``: who may do what at a zone's node, as it is in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.boundary_node import BoundaryCommands

pytestmark = pytest.mark.req("BOUNDARY:operator")

POLICY = """\
[identities."plant-a-press"]
operations = ["AppendFact", "GetStatus"]
assert = ["plant-a"]
target = ["hq", "lab-*"]

[anonymous]
operations = ["GetStatus"]
"""


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> BoundaryCommands:
    """The command line in a folder with settings of one zone, and no node."""
    monkeypatch.chdir(tmp_path)
    return BoundaryCommands(tmp_path, capsys, monkeypatch)


def zone(commands: BoundaryCommands, more: str) -> None:
    """Settings of the zone plant-a."""
    text = f'[zones.plant-a]\ndata = "data"\n{more}\n'
    (commands.place / "ergon.toml").write_text(text)


def test_the_policy_of_a_file(commands: BoundaryCommands) -> None:
    """Each identity with what it may do; nothing is opened or made by looking."""
    zone(commands, 'policy = "policy.toml"')
    (commands.place / "policy.toml").write_text(POLICY)
    found = commands("policy", "--zone", "plant-a", "--json")
    assert found.code == 0
    press, anybody = found.json
    assert press["identity"] == "plant-a-press"
    assert press["operations"] == ["AppendFact", "GetStatus"]
    assert (press["assert"], press["target"]) == (["plant-a"], ["hq", "lab-*"])
    assert (anybody["identity"], anybody["operations"]) == ("(no certificate)", ["GetStatus"])
    shown = commands("policy").out
    assert "plant-a-press" in shown
    assert "lab-*" in shown
    assert not (commands.place / "data").exists()


def test_a_file_with_a_mistake(commands: BoundaryCommands) -> None:
    """It is told with its place: the node would go on with the last good one."""
    zone(commands, 'policy = "policy.toml"')
    (commands.place / "policy.toml").write_text(
        POLICY.replace('"GetStatus"]\nassert', '"GetStatsu"]\nassert')
    )
    found = commands("policy")
    assert found.code == 2
    assert "GetStatsu" in found.err
    assert "plant-a-press" in found.err
    (commands.place / "policy.toml").unlink()
    missing = commands("policy")
    assert missing.code == 2
    assert "policy.toml cannot be read" in missing.err


def test_without_certificates(commands: BoundaryCommands) -> None:
    """Nobody shows who he is, and everybody may do everything."""
    zone(commands, "insecure = true")
    found = commands("policy", "--json").json
    assert [each["identity"] for each in found] == ["(no certificate)", "(everybody else)"]
    assert all(each["operations"] == ["all"] for each in found)


def test_with_certificates_and_no_file(commands: BoundaryCommands) -> None:
    """The zone itself may do everything at its node, and its peers may pull."""
    zone(
        commands,
        'cert = "a.pem"\nkey = "a.key"\nca = "ca.pem"\npeers = { hq = "https://hq.example:9441" }',
    )
    found = {each["identity"]: each for each in commands("policy", "--json").json}
    assert found["plant-a"]["operations"] == ["all"]
    assert "AppendFact" not in found["hq"]["operations"]


def test_a_zone_that_is_not_there(commands: BoundaryCommands) -> None:
    """The zones that the settings have are named."""
    zone(commands, "insecure = true")
    refused = commands("policy", "--zone", "plant-b")
    assert refused.code == 2
    assert "plant-a" in refused.err
