"""The check of names against the glossary, tried on a small checkout with planted violations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.glossary_check import MANY, SHARED, violations, words

GLOSSARY = """\
# Glossary

- **claim**, **lease** of a job: taking it.
- **store**: where jobs are kept.

## Words we do not use

- **bell**, **ring**: a notifier wakes its subscriptions.
- **desk**: admin.
- **line**: queue.
"""
MAP = '"""Claims.\n\nWhere to look first: ``claim`` has ``plan``.\n"""\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a glossary and one file."""
    for folder in ("docs", "src/ergon_framework", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/glossary.md").write_text(GLOSSARY)
    write(tmp_path, "src/ergon_framework/client.py", "class JobClient: ...\n")
    return tmp_path


def write(root: Path, name: str, text: str = "") -> None:
    """A file, with its folders."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_glossary_is_read() -> None:
    """Every bold word at the head of an entry counts, and only those."""
    assert words(GLOSSARY) == ({"claim", "lease", "store"}, {"bell", "ring", "desk", "line"})


def test_names_that_keep_to_it_pass(checkout: Path) -> None:
    """Private classes may share a name, and a forbidden word may be a part of another one."""
    write(checkout, "src/ergon_framework/a.py", "class Page: ...\nclass _Row: ...\n")
    write(checkout, "src/ergon_framework/b.py", "class _Page: ...\nclass _Row: ...\n")
    write(checkout, "src/ergon_framework/string.py")
    write(checkout, "tests/test_a.py", "class Desk: ...\n")
    write(checkout, "src/ergon_framework/c.py", "lines = ring = 1\n")
    write(checkout, "src/ergon_framework/d/claim.py", "def plan(): ...\n")
    write(checkout, "src/ergon_framework/d/__init__.py", MAP)
    write(checkout, "src/ergon_framework/schema/0001_bell.sql")
    assert violations(checkout) == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("src/ergon_framework/desk.py", "", "'desk' is not a word of ours"),
        ("tests/test_bell_ends.py", "", "'bell' is not a word of ours"),
        ("src/ergon_framework/sql/ring.sql", "", "'ring' is not a word of ours"),
        ("src/ergon_framework/b.py", "class JobClient: ...\n", "give each a name of its own"),
        ("src/ergon_framework/b.py", "JobClient: TypeAlias = str\n", "give each a name of its own"),
        ("src/ergon_framework/b.py", "class _OrderDesk: ...\n", "class _OrderDesk: 'desk'"),
        ("benchmarks/parts/ring.py", "", "'ring' is not a word of ours"),
        ("benchmarks/parts/b.py", "class Desk: ...\n", "class Desk: 'desk' is not a word"),
        ("tools/b.py", "class BellTower: ...\n", "class BellTower: 'bell' is not a word"),
        ("examples/b.py", "class HTTPLine: ...\nclass Line: ...\n", "class Line: 'line' is not"),
        ("src/ergon_framework/b.py", "def open_desk(): ...\n", "open_desk: 'desk' is not"),
        ("src/ergon_framework/b.py", "class A:\n    bell: int = 1\n", "bell: 'bell' is not"),
        ("src/ergon_framework/b.py", "def f(a_desk): ...\n", "a_desk: 'desk' is not a word"),
        (
            "src/ergon_framework/b/__init__.py",
            '"""B.\n\nWhere to look first: ``gone``.\n"""',
            "the map names gone, which is not there",
        ),
        (
            "src/ergon_framework/b/c/__init__.py",
            '"""C.\n\n- ``gone``: what was here\n"""',
            "the map names gone, which is not there",
        ),
        ("docs/glossary.md", GLOSSARY + "- **store**: x.\n", "explained and forbidden"),
    ],
)
def test_a_planted_violation_is_found(checkout: Path, name: str, text: str, found: str) -> None:
    """One violation, one line, which says where it is."""
    write(checkout, name, text)
    (line,) = violations(checkout)
    assert found in line
    assert Path(name).stem in line


def test_a_public_class_of_the_package_has_one_home(checkout: Path) -> None:
    """Also one that no page names: who searches for it finds one class."""
    write(checkout, "src/ergon_framework/a.py", "class Page: ...\n")
    write(checkout, "src/ergon_framework/jobs/b.py", "class Page: ...\n")
    (line,) = violations(checkout)
    assert "Page is defined in a.py, jobs/b.py: give each a name of its own" in line


@pytest.mark.parametrize("folder", ["tools", "benchmarks"])
def test_two_programs_may_share_a_name(checkout: Path, folder: str) -> None:
    """Three may not; the names of another folder are not counted."""
    write(checkout, "src/ergon_framework/a.py", "class Page: ...\n")
    for name in ("a", "b"):
        write(checkout, f"{folder}/{name}.py", f"class Page: ...\nclass {min(MANY)}: ...\n")
    assert violations(checkout) == []
    write(checkout, f"{folder}/c.py", f"class Page: ...\nclass {min(MANY)}: ...\n")
    (line,) = violations(checkout)
    assert "Page is defined in a.py, b.py, c.py: at most 2 may share it" in line


def test_an_exception_has_two_homes_at_most(checkout: Path) -> None:
    """What two specifications name alike may be there twice, not three times."""
    name = min(SHARED)
    for file in ("a", "b"):
        write(checkout, f"src/ergon_framework/{file}.py", f"class {name}: ...\n")
    assert violations(checkout) == []
    write(checkout, "src/ergon_framework/c.py", f"class {name}: ...\n")
    assert len(violations(checkout)) == 1
