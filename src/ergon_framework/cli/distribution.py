"""The version of the installed distribution, for the command and for ``ergon --version`` alone."""

from __future__ import annotations

DISTRIBUTION = "ergon-framework"


def version() -> str:
    """The version of the installed distribution, or why there is none."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of(DISTRIBUTION)
    except PackageNotFoundError:
        return "(from a source tree, not installed)"
