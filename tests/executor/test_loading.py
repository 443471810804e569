from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError, WiringError
from ergon_framework.executor.loading import AppError, load

pytestmark = pytest.mark.req("JOBS:executor")

REGISTRY = "from ergon_framework.executor import Registry\nregistry = Registry()\n"
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into a working directory of this test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def written(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_working_directory_is_found(write: Write) -> None:
    """By its name, or by that of its file."""
    name = write("shop_one", REGISTRY)
    assert load(f"{name}:registry") is load(f"{name}.py:registry")


def test_a_registry_may_stand_deeper(write: Write) -> None:
    """Inside a class, or in something that has one."""
    name = write("shop_two", REGISTRY + "class App:\n    registry = registry\n")
    assert load(f"{name}:App.registry") is load(f"{name}:App")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        ("registry = = 1", "line 1: SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "line 1: ZeroDivisionError"),
    ],
)
def test_a_module_that_breaks_says_where(write: Write, text: str, told: str) -> None:
    """That is its own trouble, not a wrong --app."""
    name = write("shop_three", text)
    with pytest.raises(WiringError, match=told) as caught:
        load(f"{name}:registry")
    assert not isinstance(caught.value, AppError)


def test_our_own_errors_come_through_as_they_are(write: Write) -> None:
    """They say best what is wrong."""
    name = write("shop_four", REGISTRY + "registry.add(len, 'x')\nregistry.add(len, 'x')\n")
    with pytest.raises(WiringError, match=r"^there are two handlers named 'x'"):
        load(f"{name}:registry")


def test_a_file_with_a_taken_name_is_refused(write: Write) -> None:
    """The other module would be used in its place."""
    name = write("shop_five", REGISTRY)
    sys.modules[name] = sys
    with pytest.raises(AppError, match="taken by another module"):
        load(f"{name}.py:registry")


@pytest.mark.parametrize("name", ["report", "report.v2.py", "__main__.py", "my report-2.txt"])
def test_a_file_that_no_import_can_name_is_loaded(write: Write, tmp_path: Path, name: str) -> None:
    """As a program it has any name; what stands under the guard is not run."""
    guard = 'if __name__ == "__main__":\n    raise SystemExit("run as a program")\n'
    (tmp_path / name).write_text(REGISTRY + guard)
    registry = load(f"{tmp_path / name}:registry")
    assert load(f"{tmp_path / name}:registry") is registry


def test_such_a_file_that_breaks_says_where(write: Write, tmp_path: Path) -> None:
    """With its line, as a module does."""
    (tmp_path / "report").write_text("\n1 / 0\n")
    with pytest.raises(WiringError, match="report, line 2: ZeroDivisionError"):
        load(f"{tmp_path / 'report'}:registry")


@pytest.mark.parametrize("app", ["", ":", "json", "json:", ":x", "json:registry", "json:x.y"])
def test_a_reference_that_leads_nowhere_is_refused(write: Write, app: str) -> None:
    """With the words of wrong configuration."""
    with pytest.raises(ConfigurationError):
        load(app)
