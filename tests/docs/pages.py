"""Reads the Python blocks of a Markdown page, runs them, and compares what they print.

The blocks of a page are one program: each continues the one before it. A mark on the line before a
block changes that. ``<!-- not run: reason -->`` leaves it out. ``<!-- prints -->`` says that it is
what was printed since the last such mark. ``<!-- file: name -->`` writes it to a file, whatever its
language, and ``<!-- append: name -->`` at the end of one. ``<!-- run -->`` runs its lines, which
call ``ergon`` or ``python``. A program may be written with ``.venv/bin/`` before it.
``<!-- start -->`` starts each line, waits for the first line it prints, and ends it after the page.
``<!-- ports: 9441 -->`` names ports for which free ones are taken, ``<!-- copy: path -->`` a file
of the repository that lies beside the page, or a folder whose files do.
``<!-- server: postgresql -->`` says that the addresses of ``db.example.org`` on the page stand for
one database, whose URL is the second argument of the program. Functions named ``test_…`` are
called after the last block.

Run as a program, it runs one page: pages may configure what is global in a process.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ergon_framework.testing.clock import VirtualClock
from tests import fork_server
from tests.servers.server import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATED = {"docs/reference/conformance.md"}

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>```+|~~~+)\s*(?P<language>\S*)\s*$")
_NOT_RUN = re.compile(r"^\s*<!-- not run:(?P<reason>.*)-->\s*$")
_FILE = re.compile(r"^\s*<!-- file: (?P<name>[\w.-]+(?:/[\w.-]+)*) -->\s*$")
_APPEND = re.compile(r"^\s*<!-- append: (?P<name>[\w.-]+(?:/[\w.-]+)*) -->\s*$")
_PRINTS = re.compile(r"^\s*<!-- prints -->\s*$")
_RUN = re.compile(r"^\s*<!-- run -->\s*$")
_START = re.compile(r"^\s*<!-- start -->\s*$")
_PORTS = re.compile(r"^<!-- ports:(?P<ports>[\d ]+)-->$", re.MULTILINE)
_COPY = re.compile(r"^<!-- copy: (?P<path>[\w.-]+(?:/[\w.-]+)*) -->$", re.MULTILINE)
_SERVER = re.compile(r"^<!-- server: postgresql -->$", re.MULTILINE)
_ADDRESS = re.compile(r"postgresql(?P<driver>\+\w+)?://\w+@db\.example\.org/\w+")
_PROGRAMS = {"ergon": [sys.executable, "-m", "ergon_framework.cli"], "python": [sys.executable]}


class PageError(Exception):
    """The page itself is wrong, not the code on it."""


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is the page's line of its first line of text."""

    language: str
    text: str
    line: int
    is_run: bool = True
    is_expected: bool = False  # what the blocks before it print
    is_commands: bool = False  # lines that call ergon or python
    is_started: bool = False  # the same, and they go on beside the page
    file: str | None = None
    is_appended: bool = False  # to that file


def all_pages() -> list[str]:
    """The pages people read, as paths below the repository's root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if name not in GENERATED]


def blocks(source: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    lines = source.splitlines()
    position = 0
    while position < len(lines):
        opening = _FENCE.match(lines[position])
        if opening is None:
            position += 1
            continue
        end = _closing(lines, position, opening["marks"])
        yield _block(lines, position, end, opening)
        position = end + 1


def _closing(lines: list[str], start: int, marks: str) -> int:
    for position in range(start + 1, len(lines)):
        if lines[position].strip() == marks:
            return position
    raise PageError(f"line {start + 1}: a block is never closed")


def _block(lines: list[str], start: int, end: int, opening: re.Match[str]) -> Block:
    mark = lines[start - 1] if start else ""
    left_out = _NOT_RUN.match(mark)
    if left_out is not None and not left_out["reason"].strip():
        raise PageError(f"line {start}: a block that is not run needs a reason")
    file = _FILE.match(mark) or _APPEND.match(mark)
    indent = len(opening["indent"])
    text = "\n".join(line[indent:] for line in lines[start + 1 : end])
    return Block(
        opening["language"],
        text,
        start + 2,
        is_run=left_out is None,
        is_expected=_PRINTS.match(mark) is not None,
        is_commands=_RUN.match(mark) is not None,
        is_started=_START.match(mark) is not None,
        file=None if file is None else file["name"],
        is_appended=_APPEND.match(mark) is not None,
    )


def has_code(source: str) -> bool:
    """Whether a page has a block to run, a command to try or a file that they need."""
    return any(
        block.file is not None
        or block.is_commands
        or block.is_started
        or (block.language == "python" and block.is_run)
        for block in blocks(source)
    )


def needs_server(source: str) -> bool:
    """Whether addresses on a page stand for a database of PostgreSQL."""
    return _SERVER.search(source) is not None


def run_page(source: str, name: str, database: str = "") -> int:
    """Run a page; the number of blocks that were run."""
    for found in _COPY.finditer(source):
        _copy(ROOT / found["path"])
    if needs_server(source):
        source = _ADDRESS.sub(lambda match: _with_driver(database, match["driver"]), source)
    with contextlib.ExitStack() as stack:
        return _run_blocks(list(blocks(_with_free_ports(source))), name, stack)


def _copy(source: Path) -> None:
    if source.is_file():
        shutil.copy(source, ".")
    else:
        shutil.copytree(
            source, ".", ignore=shutil.ignore_patterns("__pycache__", "*.db"), dirs_exist_ok=True
        )


def _with_driver(url: str, driver: str | None) -> str:
    """The URL as SQLAlchemy wants it, which names the driver as well."""
    return url.replace(":", f"{driver}:", 1) if driver else url


def _run_blocks(page: list[Block], name: str, stack: contextlib.ExitStack) -> int:
    # As if it were copied to the working folder: an App keeps its store beside its program.
    here = str(Path.cwd() / Path(name).name)
    sys.path.insert(0, str(Path.cwd()))  # its blocks may import its files
    module = sys.modules["page"] = ModuleType("page")  # where the annotations of a class are read
    namespace = module.__dict__
    namespace["__file__"] = here
    count = 0
    printed = io.StringIO()
    for block in page:
        if block.file is not None:
            _write(Path(block.file), block)
        elif block.is_commands:
            count += 1
            printed.write("".join(map(_output_of, _lines(block))))
        elif block.is_started:
            for line in _lines(block):
                printed.write(stack.enter_context(_running(line)))
        elif block.language == "python" and block.is_run:
            count += 1
            with contextlib.redirect_stdout(printed):
                exec(_compiled(block, name), namespace)  # noqa: S102 - running pages is the point
        elif block.is_expected:
            actual = printed.getvalue().rstrip("\n")
            assert actual == block.text, f"{name}, line {block.line}: it prints {actual!r}"
            printed = io.StringIO()
    _call_tests(namespace)
    return count


def _write(file: Path, block: Block) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a" if block.is_appended else "w", encoding="utf-8") as opened:
        opened.write(block.text + "\n")


def _with_free_ports(source: str) -> str:
    """The page with ports that nobody uses in place of those it is written with."""
    found = _PORTS.search(source)
    if found is None:
        return source
    ports = {each: str(free_port()) for each in found["ports"].split()}
    # All at once: a port may have the digits of another one in it.
    return re.sub("|".join(ports), lambda match: ports[match[0]], source)


def _lines(block: Block) -> list[str]:
    """The commands of a block; one may go on after a backslash."""
    return block.text.replace("\\\n", " ").splitlines()


def _command(line: str) -> list[str]:
    """The page's ``ergon`` and ``python``, also of ``.venv``, are those of this interpreter."""
    name, *words = shlex.split(line.removeprefix(".venv/bin/"), comments=True)
    assert name in _PROGRAMS, f"cannot run {line!r}"
    return [*_PROGRAMS[name], *words]


def _output_of(line: str) -> str:
    """What a command prints."""
    done = fork_server.run(_command(line), capture_output=True, text=True)
    assert done.returncode == 0, f"{line!r} failed: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def _running(line: str) -> Iterator[str]:
    """A program beside the page, and the first line it prints."""
    with fork_server.start(_command(line), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first, f"{line!r} ended before it was ready"
            yield first
        finally:
            process.terminate()
            process.wait()


def _compiled(block: Block, name: str) -> Any:
    # Blank lines in front, so that a traceback shows the page's own line numbers.
    return compile("\n" * (block.line - 1) + block.text + "\n", name, "exec", dont_inherit=True)


def _call_tests(namespace: dict[str, Any]) -> None:
    tests = [
        value
        for key, value in namespace.items()
        if key.startswith("test_") and inspect.isfunction(value)
    ]
    for test in tests:
        if "virtual_clock" in inspect.signature(test).parameters:
            with VirtualClock() as clock:
                test(virtual_clock=clock)
        else:
            test()


if __name__ == "__main__":
    fork_server.serve_own_children()
    page = Path(sys.argv[1])
    count = run_page(page.read_text(encoding="utf-8"), str(page), *sys.argv[2:])
    sys.stdout.write(f"{count}\n")
