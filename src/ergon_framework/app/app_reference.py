"""Which App ``ergon run`` means: ``module:app``, ``script.py:app`` or ``script.py`` alone."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ergon_framework.app.imports import is_reference
from ergon_framework.app.imports import load as load_object
from ergon_framework.app.script_source import bound_late, made_late
from ergon_framework.errors import WiringError
from ergon_framework.executor import loading

if TYPE_CHECKING:
    from ergon_framework.app.application import App


def script_in(target: str) -> Path | None:
    """The file that a target names; None for a module, or a name of the settings."""
    place, _, _ = target.partition(":")
    return Path(place) if place.endswith(".py") or os.sep in place else None


def find_app(target: str) -> App | None:
    """The App that a target names; None where it names something else, such as a task.

    Importing the module, or the script, runs the user's code, but not what stands under
    ``if __name__ == "__main__":``. Processes that this one starts find the same modules.
    """
    script = script_in(target)
    if script is not None:
        found = _of_script(script, target.partition(":")[2])
        _let_children_import(script.parent)
        return found
    if not is_reference(target):
        return None
    try:
        named = load_object(target)
    except WiringError as error:
        raise _late_error_of(target) or error from error
    if not _is_app(named):
        _refuse_factory(target, named)
        return None
    top = sys.modules[target.partition(":")[0].partition(".")[0]]
    if top.__file__ is not None:
        file = Path(top.__file__)
        _let_children_import(file.parents[1] if file.stem == "__init__" else file.parent)
    return cast("App", named)


def _of_script(script: Path, name: str) -> App:
    if script.suffix != ".py" and script.is_file():
        raise WiringError(
            f"{str(script)!r} has a name that no other process could import: it lacks .py",
            remedy=f"rename it, or run it with python {_shell_argument(script)}",
        )
    if not script.stem.isidentifier() or script.stem == "__main__":
        raise WiringError(
            f"{str(script)!r} has a name that no other process could import",
            remedy=f"rename it, or run it with python {_shell_argument(script)}",
        )
    module = loading.module_in(script)
    if name:
        try:
            found = loading.named_in(module, f"{script}:{name}", name)
        except WiringError as error:
            raise late_error(script, name) or error from error
        if not _is_app(found):
            _refuse_factory(f"{script}:{name}", found)
            raise WiringError(
                f"{name!r} in {script} is a {type(found).__name__}, not an App",
                remedy="name the App: " + (", ".join(_apps_in(module)) or "there is none"),
            )
        return cast("App", found)
    names = _apps_in(module)
    if not names and (where := made_late(script)):
        raise _not_at_import(f"the App of {script} is made {where}")
    if len(names) != 1:
        count = f"there are several: {', '.join(names)}" if names else "there is none"
        raise WiringError(
            f"which App of {script}? {count}",
            remedy=f"write {_shell_argument(script, names[0])}"
            if names
            else "write app = App() at its top",
        )
    return cast("App", getattr(module, names[0]))


def _shell_argument(script: Path, name: str = "") -> str:
    """A script, or an App of it, as an argument in a shell that no command takes for an option."""
    place = f"./{script}" if str(script).startswith("-") else str(script)
    return shlex.quote(f"{place}:{name}" if name else place)


def late_error(file: Path, name: str) -> WiringError | None:
    """Why a file does not have a name that it binds, when it is imported."""
    where = bound_late(file, name)
    return _not_at_import(f"{name!r} of {file} is made {where}") if where else None


def _late_error_of(target: str) -> WiringError | None:
    module, _, name = target.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else late_error(Path(file), name)


def _not_at_import(what: str) -> WiringError:
    return WiringError(
        f"{what}, and an import of the file does not run that",
        remedy="write app = App() at the top level of the file, outside of functions and of the"
        " guard",
    )


def _refuse_factory(target: str, named: object) -> None:
    """Refuse a function that makes an App, by its annotation: each process would make another."""
    returned = getattr(named, "__annotations__", {}).get("return")
    if callable(named) and (returned == "App" or _is_app_type(returned)):
        place, _, name = target.rpartition(":")
        raise WiringError(
            f"{target!r} is a function that makes an App, and not an App",
            remedy=f"write app = {name}() at the top level of its file, and name {place}:app",
        )


def _apps_in(module: object) -> list[str]:
    return [name for name, value in vars(module).items() if _is_app(value)]


def _is_app(value: Any) -> bool:
    from ergon_framework.app.application import App

    return isinstance(value, App)


def _is_app_type(value: Any) -> bool:
    from ergon_framework.app.application import App

    return isinstance(value, type) and issubclass(value, App)


def _let_children_import(folder: Path) -> None:
    """Put a folder on the import path of the processes that run the App's handlers."""
    here = str(folder.resolve())
    known = os.environ.get("PYTHONPATH", "")
    if here not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, known)))
    if here not in sys.path:
        sys.path.insert(0, here)
