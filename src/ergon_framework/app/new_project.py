"""Makes a new project: a folder that is there whole, or not at all."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.failpoints import declare, failpoint

SUFFIX = ".tmpl"
"""The suffix of templates, so that no tool takes them for code of this package."""
SOURCE = ".ergon.mk"
"""The file of a project that tells make where Ergon comes from on this machine."""
MAX_NAME = 64
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_TAKEN = frozenset(
    {"ergon", "ergon_framework", "src", "test", "tests", "orders", "pytest", "pip", "hatchling"}
)
_RENAMED = {"gitignore": ".gitignore"}  # under its own name it would apply to the templates

declare("app.scaffold.written")


@dataclass(frozen=True, slots=True)
class NewProject:
    """A project that was made."""

    name: str
    package: str
    folder: Path
    files: tuple[str, ...]


def new_project(name: str, parent: Path, source: str | None = None) -> NewProject:
    """Make the folder ``name`` in ``parent``: a project whose tests pass at once.

    ``source`` is where Ergon itself came from, unless from an index: ``make setup`` installs that
    one. It stands in a file of its own, which is not committed. The project is written beside its
    place and renamed at the end, so that nobody sees half of it.
    """
    package = package_of(name)
    folder = parent / name
    _refuse_occupied(folder)
    try:
        written = _write(folder, {"@name@": name, "@package@": package}, source)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(
            f"the project cannot be written to {folder}: {reason}",
            remedy="give a folder you may write to: --dir PATH",
        ) from error
    return NewProject(name, package, folder, written)


def package_of(name: str) -> str:
    """The Python package of a project: its name in lower case, with ``_`` for ``-``."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a project",
            remedy=f"use at most {MAX_NAME} letters, digits, - and _, beginning with a letter "
            "and ending with a letter or digit",
        )
    package = name.replace("-", "_").lower()
    if keyword.iskeyword(package) or package in _TAKEN or _is_installed(package):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a project: its package {package!r} would hide "
            "something else of that name",
            remedy=f"take another one, for example my-{name}",
        )
    return package


def _is_installed(package: str) -> bool:
    """Whether Python has a module of that name, or one is installed beside Ergon.

    Modules in other places, as in the working directory, may be an earlier try at this project.
    """
    if package in sys.stdlib_module_names:
        return True
    places = {sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")}
    return PathFinder.find_spec(package, [*places]) is not None


def next_commands(project: NewProject) -> list[str]:
    """What to type next."""
    return [f"cd {shlex.quote(str(project.folder))}", "make setup", "make test"]


def origin() -> str | None:
    """The folder or wheel that this Ergon was installed from, or None: from a package index."""
    try:
        text = distribution("ergon-framework").read_text("direct_url.json")
    except PackageNotFoundError:  # a source tree on the path
        return str(Path(__file__).resolve().parents[3])
    url = urlsplit(json.loads(text)["url"]) if text else None
    place = unquote(url.path) if url is not None and url.scheme == "file" else None
    # It may have been moved or removed since; then nothing can be installed from there.
    return place if place is not None and Path(place).exists() else None


def _refuse_occupied(folder: Path) -> None:
    try:
        is_free = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    except OSError:  # it cannot be looked into
        is_free = False
    if not is_free:
        raise ConfigurationError(
            f"{folder} exists and is not empty",
            remedy="take another name, or another place: --dir PATH",
        )


def _write(folder: Path, values: dict[str, str], source: str | None) -> tuple[str, ...]:
    written = []
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        # Beside its place, so that the rename stays within one file system.
        half = Path(scratch, folder.name)  # made by us, since the scratch folder is private
        half.mkdir()
        for place, text in _templates(files(__package__) / "scaffold"):
            path = half.joinpath(*_named(place, values).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(text, values), encoding="utf-8")
            written.append(path.relative_to(half).as_posix())
        if source is not None:
            (half / SOURCE).write_text(_source_of(source), encoding="utf-8")
            written.append(SOURCE)
        failpoint("app.scaffold.written")
        # rename() puts it in the place of an empty folder, and of no other.
        half.replace(folder)
    return tuple(sorted(written))


def _source_of(source: str) -> str:
    """The file for make; $ and # mean something to it."""
    value = source.replace("$", "$$").replace("#", "\\#")
    return f"# Where Ergon was installed from when ergon new made this project.\nERGON = {value}\n"


def _templates(folder: Traversable, place: str = "") -> Iterator[tuple[PurePosixPath, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _templates(each, f"{place}{each.name}/")
        elif each.name.endswith(SUFFIX):
            yield PurePosixPath(f"{place}{each.name}"), each.read_text(encoding="utf-8")


def _named(place: PurePosixPath, values: dict[str, str]) -> PurePosixPath:
    name = place.name.removesuffix(SUFFIX)
    parents = [values["@package@"] if part == "package" else part for part in place.parts[:-1]]
    return PurePosixPath(*parents, _RENAMED.get(name, name))


def _filled(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
