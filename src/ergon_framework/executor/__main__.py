"""``python -m ergon_framework.executor --app module:registry``: an executor that starts fast."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = "usage: python -m ergon_framework.executor --app module:registry [--debug]"


def main(arguments: Sequence[str]) -> int:
    """Serve, or say how it is done. Nothing but what serving takes is imported for it."""
    given = list(arguments)
    if "--help" in given or "-h" in given:
        print(f"{USAGE}\n\nRequests come on the standard input, outcomes go to the output.")  # noqa: T201
        return 0
    is_debug = "--debug" in given
    given = [each for each in given if each != "--debug"]
    if len(given) == 1 and given[0].startswith("--app="):
        app = given[0].removeprefix("--app=")
    elif len(given) == 2 and given[0] == "--app":
        app = given[1]
    else:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    from ergon_framework.executor.process import serve

    return serve(app, is_debug=is_debug)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
