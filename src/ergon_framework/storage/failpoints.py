"""Places where dying is interesting, and how a test dies there.

``ERGON_FAILPOINTS="storage.commit.before=kill@3,storage.commit.after=error"`` in the environment of
a process makes it end itself with SIGKILL, raise an ``OSError``, or stop until it is continued
(``pause``), at the third pass or, by default, the first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ergon_framework.errors import SettingsError

VARIABLE = "ERGON_FAILPOINTS"
NAMES: set[str] = set()
"""Every failpoint that the modules imported so far have declared."""

_ENTRY = re.compile(r"(?P<name>[\w.]+)=(?P<action>kill|error|pause)(?:@(?P<nth>[1-9]\d{0,8}))?")


@dataclass(slots=True)
class _Trap:
    action: str
    left: int


_traps: dict[str, _Trap] = {}
_lock = threading.Lock()


def declare(*names: str) -> None:
    """Make failpoints known, when a module is imported.

    Names have the form ``room.place.moment``. Those that differ only in their last word are
    declared by modules that are imported together.
    """
    NAMES.update(names)


def failpoint(name: str) -> None:
    """Mark a place where dying is interesting. Does nothing unless a test asked for more."""
    # The whole cost where nothing is armed: one look at an empty dict on every commit.
    if _traps:
        _pass(name)


def check() -> None:
    """Refuse a variable that names unknown failpoints; to be called after all modules with
    failpoints are imported.
    """
    unknown = sorted(_traps.keys() - NAMES)
    if unknown:
        raise SettingsError(
            f"{VARIABLE} names unknown failpoints: {', '.join(unknown)}",
            remedy=f"the known ones are {', '.join(sorted(NAMES))}",
        )


@contextlib.contextmanager
def armed(text: str) -> Iterator[None]:
    """Arm failpoints of this process for a while, as the variable would."""
    before = dict(_traps)
    _traps.update(_parse(text))
    try:
        _check_groups()
        yield
    finally:
        _traps.clear()
        _traps.update(before)


def _pass(name: str) -> None:
    # Here and not at import: modules declare their names as they are imported.
    _check_groups()
    with _lock:
        trap = _traps.get(name)
        if trap is None:
            return
        trap.left -= 1
        if trap.left != 0:
            return
    # Outside of the lock: a process that is stopped here, and continued later, must not keep other
    # threads from their failpoints.
    if trap.action == "error":
        raise OSError(errno.EIO, f"the failpoint {name} was told to fail")
    # To this very thread: another one could be stopped a moment later than this one goes on.
    signum = signal.SIGKILL if trap.action == "kill" else signal.SIGSTOP
    signal.pthread_kill(threading.get_ident(), signum)


def _check_groups() -> None:
    """A process need not have imported everything, but what it has must know all its names."""
    groups = {name.rpartition(".")[0] for name in NAMES}
    if any(name.rpartition(".")[0] in groups for name in _traps.keys() - NAMES):
        check()


def _parse(text: str) -> dict[str, _Trap]:
    traps = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise SettingsError(
                f"{VARIABLE} has {entry!r}",
                remedy="write name=kill, name=error or name=pause, with @n for the n-th pass",
            )
        traps[found["name"]] = _Trap(found["action"], int(found["nth"] or 1))
    return traps


_traps.update(_parse(os.environ.get(VARIABLE, "")))
