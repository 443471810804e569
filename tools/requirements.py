"""Prints what has to be installed: the dependencies, and those of named groups and of all extras.

    python tools/requirements.py GROUP... [--extras]

pip reads dependency groups (PEP 735) only since 25.1, and a fresh virtual environment often has an
older one.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load_pyproject(root: Path = ROOT) -> dict[str, Any]:
    """The project's settings as plain data."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def expand_group(groups: dict[str, list[Any]], name: str, above: tuple[str, ...] = ()) -> list[str]:
    """The requirements of one group, with those of the groups it includes."""
    if name in above:
        raise SystemExit(f"dependency group {name!r} includes itself: {' -> '.join(above)}")
    if name not in groups:
        raise SystemExit(f"unknown dependency group {name!r}; known are {', '.join(groups)}")
    found: list[str] = []
    for entry in groups[name]:
        if isinstance(entry, str):
            found.append(entry)
        else:
            found += expand_group(groups, entry["include-group"], (*above, name))
    return found


def requirements(
    pyproject: dict[str, Any], groups: list[str] | None = None, *, extras: bool = False
) -> list[str]:
    """The dependencies plus those of ``groups`` (None means all), sorted, each once."""
    project, known = pyproject["project"], pyproject.get("dependency-groups", {})
    found = set(project.get("dependencies", ()))
    for name in known if groups is None else groups:
        found.update(expand_group(known, name))
    if extras:
        for extra in project.get("optional-dependencies", {}).values():
            found.update(extra)
    return sorted(found)


def main() -> None:
    """Print one requirement per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--extras", action="store_true", help="the dependencies of every extra too")
    chosen = parser.parse_args()
    print("\n".join(requirements(load_pyproject(), chosen.groups, extras=chosen.extras)))


if __name__ == "__main__":
    main()
