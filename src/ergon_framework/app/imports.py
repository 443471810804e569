"""Finding what ``module:name`` stands for, with the working directory on the import path."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from ergon_framework.errors import ErgonError, WiringError, describe

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_reference(text: str) -> bool:
    """Whether a text has the form ``module:name``."""
    return _REFERENCE.fullmatch(text) is not None


def load(reference: str) -> Any:
    """The object a reference stands for. Importing its module runs the user's code."""
    return find(module_of(reference), reference)


def module_of(reference: str) -> ModuleType:
    """The module of a reference, imported."""
    name = reference.partition(":")[0]
    _add_working_directory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module is there, and one that it imports is not.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise WiringError(f"there is no module {error.name!r}", remedy=_near(name)) from error
    except ErgonError:
        raise  # it says what is wrong better than we could
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def find(module: ModuleType, reference: str) -> Any:
    """The object a reference names in its module."""
    found: Any = module
    for name in reference.partition(":")[2].split("."):
        if not hasattr(found, name):
            near = get_close_matches(name, [each for each in dir(found) if each[0] != "_"], 1)
            place = getattr(found, "__name__", type(found).__name__)
            raise WiringError(
                f"{reference!r}: there is no {name!r} in {place}",
                remedy=f"did you mean {near[0]!r}?" if near else "define it there",
            )
        found = getattr(found, name)
    return found


def _add_working_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _near(name: str) -> str:
    known = [each.name for each in pkgutil.iter_modules([str(Path.cwd())])]
    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "run the command in the directory that holds it, or install it"


def _failed(name: str, error: BaseException) -> WiringError:
    """The user's module broke: say where, since no traceback is shown."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}: "
        problem = f"SyntaxError: {error.msg}"
    else:
        frames = [
            each for each in traceback.extract_tb(error.__traceback__) if _is_user_frame(each)
        ]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
        problem = describe(error)
    return WiringError(
        f"the module {name!r} cannot be imported: {where}{problem}",
        remedy="--debug shows all of it",
    )


def _is_user_frame(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith("<frozen") and frame.filename != __file__
