"""Named SQL statements, read from files.

::

    -- claim: take up to so many due jobs
    UPDATE …

A line that begins with ``-- name:`` starts a statement, and what it does is said after the colon;
the statement goes on to the next such line. ``-- name: claim`` with the word itself is read as
well, since other loaders want it so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from ergon_framework.errors import WiringError

_HEADING = re.compile(r"--\s+(?:name:\s*)?(?P<name>[a-z][a-z0-9_]*)\b(?P<text>.*)")


class Statements(dict[str, str]):
    """The statements of one file by name; a wrong name is answered with the right ones."""

    def __init__(self, source: str, found: Mapping[str, str]) -> None:
        super().__init__(found)
        self._source = source

    def __missing__(self, name: str) -> str:
        raise KeyError(f"{self._source} has no statement {name!r}; it has {', '.join(self)}")


@cache
def load(package: str, file: str) -> Mapping[str, str]:
    """The named statements of a file beside the modules of ``package``."""
    source = f"{package}/{file}"
    try:
        text = (resources.files(package) / file).read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise WiringError(
            f"there is no file {source} with SQL statements",
            remedy="it belongs to the installed package; install it again",
        ) from error
    return parse(text, source)


def parse(text: str, source: str) -> Statements:
    """The named statements of a text."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        name = _name(line)
        if name is not None:
            if name in found:
                raise WiringError(f"{source} line {number}: a second statement {name!r}")
            lines = found[name] = []
        elif lines is not None:
            lines.append(line)
        elif line.strip() and not line.startswith("--"):
            raise WiringError(
                f"{source} line {number}: SQL before the first name",
                remedy="put a line `-- name: what it does` above it",
            )
    return Statements(source, {name: _body(name, body, source) for name, body in found.items()})


def _name(line: str) -> str | None:
    heading = _HEADING.fullmatch(line.rstrip())
    if heading is None:
        return None
    is_spelt_out = re.match(r"--\s+name:", line) is not None
    is_ours = heading["text"].startswith(":")
    return heading["name"] if is_spelt_out or is_ours else None


def _body(name: str, lines: list[str], source: str) -> str:
    body = "\n".join(lines).strip().removesuffix(";").rstrip()
    if all(not line.strip() or line.lstrip().startswith("--") for line in lines):
        raise WiringError(
            f"{source}: the statement {name!r} is empty",
            remedy="write SQL below it; a comment inside a statement must not read `-- word:`",
        )
    return body
