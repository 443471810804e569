"""Finds the registry that ``--app module:registry`` or ``--app file.py:registry`` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from ergon_framework.errors import ErgonError, WiringError, describe
from ergon_framework.executor.registry import Registry

_under_way: list[str] = []
"""What is being imported to be served here."""


class AppError(WiringError):
    """``--app`` names no registry."""

    code = "app"


def refuse_while_loading(what: str) -> None:
    """Refuse what a script without a guard would do once more in each of its executors."""
    if _under_way:
        raise AppError(
            f"{_under_way[-1]!r} {what} while it is imported: each of its executors does so again",
            remedy='put that under `if __name__ == "__main__":`',
        )


def load(reference: str) -> Registry:
    """The registry a reference names. Importing its module runs the user's code."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise AppError(f"--app is {reference!r}", remedy="write it as module:registry")
    is_file = place.endswith(".py") or os.sep in place
    found = named_in(module_in(Path(place) if is_file else place), reference, name)
    # An application may carry its registry; it knows of us, not we of it.
    registry = found if isinstance(found, Registry) else getattr(found, "registry", None)
    if not isinstance(registry, Registry):
        kind = type(found).__name__
        raise AppError(f"{reference!r} is a {kind}", remedy="name a Registry")
    return registry


def module_in(place: Path | str) -> ModuleType:
    """The module in a file, or of a name, imported; it may neither enqueue nor run meanwhile."""
    _under_way.append(str(place))
    try:
        return _from_file(place) if isinstance(place, Path) else _from_module(place)
    finally:
        _under_way.pop()


def named_in(module: ModuleType, reference: str, name: str) -> Any:
    """What a reference names in its module."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise AppError(f"{reference!r}: there is no {part!r}", remedy=_near(part, found))
        found = getattr(found, part)
    return found


def _from_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise AppError(
            f"there is no module {error.name!r}",
            remedy="run it in the directory that holds the module, or install it",
        ) from error
    except ErgonError:
        raise  # it says what is wrong better than we could
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppError(f"there is no file {str(path)!r}", remedy="name one, or module:name")
    sys.path.insert(0, str(path.parent.resolve()))
    if path.suffix != ".py" or "." in path.stem or path.stem == "__main__":
        return _by_location(path)
    module = _from_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise AppError(
            f"the name of the file {str(path)!r} is taken by another module",
            remedy="rename the file",
        )
    return module


def _by_location(path: Path) -> ModuleType:
    """A script that no import statement can name, such as ``bin/report`` or ``report.v2.py``."""
    name = "ergon_script_" + "".join(each if each.isalnum() else "_" for each in path.stem)
    if name in sys.modules:
        return sys.modules[name]
    loader = SourceFileLoader(name, str(path.resolve()))
    module = module_from_spec(spec_from_loader(name, loader) or ModuleSpec(name, loader))
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except ErgonError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken(str(path), error) from error
    return module


def _near(name: str, place: object) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [each for each in dir(place) if each[0] != "_"], 1)
    return f"did you mean {near[0]!r}?" if near else "define it there"


def _broken(name: str, error: BaseException) -> WiringError:
    """The user's module broke: say where, since no traceback is shown."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}: "
        reason = f"SyntaxError: {error.msg}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [f for f in frames if f.filename != __file__ and "<frozen" not in f.filename]
        where = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
        reason = describe(error)
    return WiringError(
        f"the module {name!r} cannot be imported: {where}{reason}", remedy="--debug shows all of it"
    )
