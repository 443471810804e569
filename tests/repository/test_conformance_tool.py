from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import conformance
from tools.conformance import Marker, Requirement, build, read_markers, render


def requirement(id: str, reason: str = "") -> Requirement:
    """A requirement, with a reason when no test can show it."""
    return Requirement(id, f"text of {id}", "RFC-004 Consumer engine", reason)


def ids_by_test(source: str) -> dict[str, list[str]]:
    """What a test file without mistakes says."""
    markers, problems = read_markers(source, "t.py")
    assert problems == []
    found: dict[str, list[str]] = {}
    for marker in markers:
        found.setdefault(marker.test, []).append(marker.id)
    return found


def test_markers_are_read_from_functions_classes_and_modules() -> None:
    """A test has its own ids and those of everything around it, each once."""
    found = ids_by_test("""
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.req("M1")]

@pytest.mark.req("A1", "A2")
def test_plain(): ...

@pytest.mark.req("A1", "M1")
async def test_async(): ...

@pytest.mark.req("C1")
class TestGroup:
    pytestmark = pytest.mark.req("C2")

    @pytest.mark.req("A3")
    def test_method(self): ...

    def helper(self): ...

def helper(): ...
""")
    assert found == {
        "t.py::test_plain": ["M1", "A1", "A2"],
        "t.py::test_async": ["M1", "A1"],
        "t.py::TestGroup::test_method": ["M1", "C1", "C2", "A3"],
    }


def test_markers_of_parameters_and_state_machines_are_read() -> None:
    """Marks inside parametrize count for the test, and a machine's TestCase can carry marks."""
    found = ids_by_test("""
import pytest

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req("P1")), 2])
def test_cases(x): ...

TestLoop = LoopMachine.TestCase
TestLoop.pytestmark = [pytest.mark.req("S1")]
""")
    assert found == {"t.py::test_cases": ["P1"], "t.py::TestLoop": ["S1"]}


def test_a_marker_that_belongs_to_no_test_is_a_problem() -> None:
    """A marker in a table that no decorator contains would otherwise be lost silently."""
    _, problems = read_markers('CASES = [pytest.param(1, marks=pytest.mark.req("P1"))]', "t.py")
    assert problems == ["t.py:1: this req marker is on no test"]


def test_an_id_that_is_computed_is_a_problem() -> None:
    """Ids are found by reading, so they must be written out."""
    _, problems = read_markers("@pytest.mark.req(ID)\ndef test_it(): ...", "t.py")
    assert problems == ["t.py:1: write the ids out as text"]


@pytest.mark.parametrize("marker", ["RFC-004:7.1", "RFC-004:7", "RFC-004:7.1b"])
def test_a_marker_shows_only_what_it_names(marker: str) -> None:
    """A section stands for none of its statements, and a statement for no neighbour."""
    matrix = build([requirement("RFC-004:7.1a")], [Marker(marker, "t.py::test_it")], [])
    gap, unknown = matrix.problems
    assert gap == "RFC-004:7.1a: no test shows it, and no reason says why not"
    assert unknown.startswith(f"{marker}: unknown requirement, named by t.py::test_it")


def test_a_requirement_needs_a_test_or_a_reason() -> None:
    """A requirement with neither is a problem; one with either is not."""
    wanted = [requirement("R1"), requirement("R2", "because"), requirement("R3")]
    matrix = build(wanted, [Marker("R1", "t.py::test_it")], [])
    assert matrix.problems == ["R3: no test shows it, and no reason says why not"]


def test_an_unknown_id_is_a_problem_with_a_hint() -> None:
    """A marker that names nothing says where it stands and what may have been meant."""
    matrix = build(
        [requirement("RFC-004:14c", "because")], [Marker("RFC-004:14.3", "t.py::test_it")], []
    )
    assert matrix.problems == [
        "RFC-004:14.3: unknown requirement, named by t.py::test_it; did you mean RFC-004:14c?"
    ]


def test_the_page_has_a_table_for_each_document() -> None:
    """Tests, reasons and gaps stand in one row each."""
    wanted = [requirement("R1"), requirement("R2", "a | b"), requirement("R3")]
    markers = [Marker("R1", "t.py::test_b"), Marker("R1", "t.py::test_a")]
    page = render(build(wanted, markers, []))
    assert "3 requirements: 1 shown by tests, 1 not testable." in page
    assert "| R1 | text of R1 | `t.py::test_a`<br>`t.py::test_b` |" in page
    assert "| R2 | text of R2 | not testable: a \\| b |" in page
    assert "| R3 | text of R3 | **nothing yet** |" in page


def test_an_id_listed_twice_is_refused(tmp_path: Path) -> None:
    """Two requirements of one id could not be told apart."""
    listed = tmp_path / "requirements.toml"
    entry = '{ id = "R1", text = "x" }'
    listed.write_text(f'[[document]]\nname = "D"\nrequirements = [{entry}, {entry}]\n')
    with pytest.raises(SystemExit, match="R1 is listed twice"):
        conformance.load_requirements(listed)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one requirement and one test that shows it."""
    for folder in ("docs/conformance", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / conformance.REQUIREMENTS).write_text(
        '[[document]]\nname = "D"\nrequirements = [{ id = "R1", text = "x" }]\n'
    )
    (tmp_path / "tests/test_it.py").write_text('@pytest.mark.req("R1")\ndef test_it(): ...\n')
    return tmp_path


def run(project: Path, *arguments: str) -> int:
    """The tool's exit code."""
    return conformance.main(arguments, project)


def test_check_passes_once_the_page_is_written(project: Path) -> None:
    """A missing page fails, a fresh one passes, and an edited one fails again."""
    assert run(project, "--check") == 1
    assert run(project) == 0
    assert run(project, "--check") == 0
    (project / conformance.PAGE).write_text("edited by hand")
    assert run(project, "--check") == 1


def test_check_fails_when_a_test_loses_its_marker(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Removing the only marker is a gap, even when the page was written anew."""
    (project / "tests/test_it.py").write_text("def test_it(): ...\n")
    assert run(project) == 0
    assert run(project, "--check") == 1
    assert "R1: no test shows it" in capsys.readouterr().out


def test_the_reviewed_list_is_well_formed() -> None:
    """Our own list loads, and every text is one sentence."""
    loaded = conformance.load_requirements(conformance.ROOT / conformance.REQUIREMENTS)
    assert {one.text[-1] for one in loaded} == {"."}
    known = re.compile(
        r"(RFC-00[45]|EXEC|JOBS|BSFG|BOUNDARY|PROVIDERS):[\w.]+|(ONE|SCALE):[\w-]+|PEF:[\w-]+"
        r"|R[0-3]-\w+|T3\.\d+|[XPC]\d+",
    )
    assert [one.id for one in loaded if not known.fullmatch(one.id)] == []
