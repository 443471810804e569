from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import size_report
from tools.size_report import FUNCTION_LIMIT, Size, body_lines, functions, measure, report


def first_function(source: str) -> size_report.Function:
    """The first function in a piece of code."""
    return next(node for _, node in functions(ast.parse(source)))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    return 1\n", 1),
        ('def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n\n    return a\n', 3),
        ('def f():\n    """Only words."""\n', 0),
        ("async def f(\n    a,\n    b,\n):\n    await a\n    await b\n", 2),
    ],
)
def test_a_body_is_measured_without_signature_and_docstring(source: str, lines: int) -> None:
    """Explaining a function, or giving it many arguments, does not make it longer."""
    assert body_lines(first_function(source)) == lines


def test_methods_and_nested_functions_are_found() -> None:
    """Every function is named by its place, also below an if."""
    source = "class A:\n  def f(self):\n    def g(): ...\nif True:\n  def h(): ...\n"
    assert [name for name, _ in functions(ast.parse(source))] == ["A.f", "A.f.g", "h"]


def test_each_folder_has_its_usual_length(tmp_path: Path) -> None:
    """A test file may be longer than a source file."""
    for folder in ("src", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "long.py").write_text("x = 1\n" * 701)
    files, _ = measure(tmp_path)
    assert {size.name: size.is_over for size in files} == {
        "src/long.py": True,
        "tests/long.py": False,
    }


def test_the_report_names_what_is_longer_than_usual() -> None:
    """A file of exactly the usual length is not listed."""
    text = "\n".join(report([Size("long.py", 401, 400), Size("fine.py", 400, 400)], []))
    assert text.endswith(
        "longer than usual: one subject, or several?\n  401  long.py  (usual at most 400)"
    )


def test_a_long_function_is_reported_and_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0, and the output says which function it was."""
    (tmp_path / "src").mkdir()
    body = "    x = 1\n" * (FUNCTION_LIMIT + 1)
    (tmp_path / "src/a.py").write_text(f"def f():\n{body}")
    assert size_report.main(tmp_path) == 0
    assert "src/a.py::f  (usual at most 50)" in capsys.readouterr().out
