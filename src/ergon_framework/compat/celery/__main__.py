"""``python -m ergon_framework.compat.celery module:app``: what moving means for each task."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ergon_framework.compat.celery.report import find_app, report
from ergon_framework.errors import ErgonError

USAGE = "usage: python -m ergon_framework.compat.celery module:app"


def main(arguments: Sequence[str]) -> int:
    """Report on an application; 1 if a task must be changed before it can move."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        lines, to_change = report(find_app(arguments[0]))
    except ErgonError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if to_change else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
