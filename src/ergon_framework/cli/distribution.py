"""The installed distribution, as the commands name it."""

from __future__ import annotations


def version(distribution: str = "ergon-framework") -> str:
    """The version of the installed distribution, or why there is none."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return "(from a source tree, not installed)"
