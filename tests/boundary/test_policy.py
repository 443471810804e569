"""Who may do what."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.boundary.node.policy import GROUPS, OPERATIONS, Policy, PolicyFile, read_policy
from ergon_framework.errors import ErgonError, SettingsError

pytestmark = pytest.mark.req("BOUNDARY:security")

SAMPLE = """
[identities."plant-a"]
operations = ["produce", "GetStatus"]
assert = ["plant-a"]
target = ["*"]
logs = ["outbound", "inbound:*"]
consumers = ["plant-a-?"]
buckets = ["batch-files", "lot-[ab]"]

[identities."Plant B"]

[anonymous]
operations = ["observe"]
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_a_file_says_who_may_do_what(tmp_path: Path) -> None:
    """Operations, zones, logs, consumers and buckets, each by name or pattern."""
    permit = read_policy(_written(tmp_path, SAMPLE)).permit("plant-a")
    assert permit is not None
    assert permit.identity == "plant-a"
    assert permit.allows_operation("AppendFact")
    assert permit.allows_operation("GetStatus")
    assert not permit.allows_operation("FetchFacts")
    assert permit.may_assert("plant-a")
    assert not permit.may_assert("plant-b")
    assert permit.may_target("anything at all")
    assert permit.may_read("outbound")
    assert permit.may_read("inbound:plant-b")
    assert not permit.may_read("inbound")
    assert permit.may_consume("plant-a-1")
    assert not permit.may_consume("plant-a-10")
    assert permit.may_use_bucket("lot-a")
    assert permit.may_use_bucket("batch-files")
    assert not permit.may_use_bucket("lot-c")
    assert not permit.may_use_bucket("BATCH-FILES")


def test_what_is_not_allowed_is_denied(tmp_path: Path) -> None:
    """An identity without permissions has none, and a stranger has no permit at all."""
    policy = read_policy(_written(tmp_path, SAMPLE))
    permit = policy.permit("Plant B")
    assert permit is not None
    assert not any(map(permit.allows_operation, OPERATIONS))
    checks = (permit.may_assert, permit.may_target, permit.may_read, permit.may_consume)
    assert not any(check("x") for check in (*checks, permit.may_use_bucket))
    assert policy.permit("plant-c") is None
    assert policy.permit("plant-A") is None
    assert policy.permit("anonymous") is None


def test_callers_without_a_certificate_have_a_table_of_their_own(tmp_path: Path) -> None:
    """Without that table they may do nothing."""
    permit = read_policy(_written(tmp_path, SAMPLE)).permit("")
    assert permit is not None
    assert permit.allows_operation("GetMetrics")
    assert not permit.allows_operation("Seal")
    assert read_policy(_written(tmp_path, "")).permit("") is None


def test_all_operations_have_names(tmp_path: Path) -> None:
    """Groups hold operations that exist, and ``*`` holds them all."""
    assert len(set(OPERATIONS)) == len(OPERATIONS)
    for names in GROUPS.values():
        assert set(names) <= set(OPERATIONS)
    permit = read_policy(_written(tmp_path, '[anonymous]\noperations = ["*"]')).permit("")
    assert permit is not None
    assert all(map(permit.allows_operation, OPERATIONS))


def test_the_open_policy_allows_everything() -> None:
    """For a node on a loopback address that was asked to be insecure."""
    for identity in ("", "anybody"):
        permit = Policy.open().permit(identity)
        assert permit is not None
        assert all(map(permit.allows_operation, OPERATIONS))
        assert permit.may_assert("x")
        assert permit.may_read("inbound:x")


def test_by_default_peers_may_pull_and_nothing_else() -> None:
    """Its own identity may do everything; a stranger nothing."""
    policy = Policy.default("plant-a", ["plant-b", "plant-*"])
    own, peer = policy.permit("plant-a"), policy.permit("plant-b")
    assert own is not None
    assert peer is not None
    assert own.allows_operation("Seal")
    assert own.may_assert("plant-a")
    assert peer.allows_operation("FetchFacts")
    assert peer.allows_operation("GetObject")
    assert not peer.allows_operation("AppendFact")
    assert peer.allows_operation("SeekConsumer")  # of its own consumer, when it was restored
    assert not peer.allows_operation("GetStatus")
    assert peer.may_read("outbound")
    assert not peer.may_read("inbound:plant-c")
    assert peer.may_consume("zone:plant-b")
    assert not peer.may_consume("zone:plant-c")
    assert peer.may_assert("plant-b")  # in what is pulled from it
    assert not peer.may_assert("plant-a")
    assert not peer.may_use_bucket("batch-files"), "what facts for it refer to, and no more"
    assert policy.permit("plant-c") is None
    odd = policy.permit("plant-*")
    assert odd is not None
    assert not odd.may_consume("zone:plant-b"), "a peer's name is no pattern"


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[identitys.a]", 1, "did you mean 'identities'?"),
        ("[identities.a]\n\nasserts = []", 3, "did you mean 'assert'?"),
        ('[identities.a]\nassert = "a"', 2, "must be a list of names"),
        ("[identities.a]\nassert = [1]", 2, "must be a list of names"),
        ('[identities.a]\nassert = [""]', 2, "must be a list of names"),
        ('[identities."a b"]\noperations = ["AppendFakt"]', 2, "did you mean 'AppendFact'?"),
        ('[anonymous]\noperations = ["zzz"]', 2, "known are produce"),
        ("identities = 3", 1, "must be a table"),
        ("[identities]\na = 3", 2, "must be a table"),
        ("anonymous = []", 1, "must be a table"),
        ('[identities.""]', 1, "has an empty name"),
    ],
)
def test_a_wrong_file_says_where_and_what(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    """The file, the line, the key, and what to do."""
    path = _written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_policy(path)
    assert f"{path}, line {line}:" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.req("BOUNDARY:badinput")
def test_a_file_that_is_no_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    """Syntax errors keep the parser's line."""
    with pytest.raises(SettingsError, match="line 2"):
        read_policy(_written(tmp_path, "[anonymous]\nwhat\n"))
    (tmp_path / "policy.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not TOML"):
        read_policy(tmp_path / "policy.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_policy(tmp_path / "none.toml")


def test_a_changed_file_comes_into_force_without_a_restart(tmp_path: Path) -> None:
    """It is looked at now and then; a bad one is told once, and the last good one stays."""
    now = 0.0
    problems: list[ErgonError] = []
    path = _written(tmp_path, SAMPLE)
    file = PolicyFile(path, on_problem=problems.append, every=1.0, clock=lambda: now)

    def is_known(identity: str) -> bool:
        return file.current().permit(identity) is not None

    path.write_text("[identities.plant-c]")
    assert is_known("plant-a"), "nobody has looked yet"
    now = 1.0
    assert not is_known("plant-a")
    assert is_known("plant-c")

    path.write_text("[identities")
    now = 2.0
    assert is_known("plant-c")
    now = 3.0
    assert is_known("plant-c")
    assert len(problems) == 1
    assert file.problem is problems[0]

    path.unlink()
    now = 4.0
    assert is_known("plant-c")
    assert len(problems) == 2

    path.write_text(SAMPLE)
    now = 5.0
    assert is_known("plant-a")
    assert file.problem is None


def test_the_first_file_must_be_good(tmp_path: Path) -> None:
    """A node does not start with a policy nobody wrote."""
    with pytest.raises(SettingsError):
        PolicyFile(_written(tmp_path, "[identities"))
