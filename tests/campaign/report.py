"""One line of JSON for each part of a campaign as it ends, and whether all of them held."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

Told = dict[str, Any]


def report(
    parts: Iterable[Told], run: Callable[..., Told], is_broken: Callable[[Told], bool]
) -> int:
    """Run every part, whatever became of those before it; the exit code for all of them.

    A part is what its line begins with. One that ends with an error is broken, and says it.
    """
    code = 0
    for part in parts:
        try:
            told = run(**part)
            code = code or int(is_broken(told))
        except Exception as error:  # the others are to be judged as well
            traceback.print_exc()
            told = {**part, "error": f"{type(error).__name__}: {error}"[:500]}
            code = 1
        print(json.dumps(told), flush=True)  # noqa: T201
    return code


def end_when_told() -> None:
    """Take SIGTERM as an exit: servers and processes must not be left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
