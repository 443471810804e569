"""Ends an executor whose orchestrator has died, whatever its handlers are doing.

The end of the input alone says only that no request follows: what was taken is finished then. When
the output has lost its reader as well, nobody is left who could hear how it ended, and whoever
takes the job over would run beside it.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from threading import Thread

from ergon_framework.executor.streams import Pipes, say

GRACE = 1.0
"""Seconds that handlers have after the orchestrator's death."""
_ORPHANED = 1


def end_when_orphaned(pipes: Pipes) -> None:
    """Watch both pipes in a thread of its own; does nothing for files and terminals."""
    if all(stat.S_ISFIFO(os.fstat(each).st_mode) for each in (pipes.source, pipes.target)):
        Thread(target=_watch, args=(pipes,), name="ergon-orphaned", daemon=True).start()


def _watch(pipes: Pipes) -> None:
    for descriptor, event in ((pipes.source, select.POLLHUP), (pipes.target, select.POLLERR)):
        poll = select.poll()
        poll.register(descriptor, 0)  # these two are always told
        while not any(found & (event | select.POLLNVAL) for _, found in poll.poll()):
            pass
    say(f"whoever started this process is gone; it ends in {GRACE:g} s")
    time.sleep(GRACE)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what handlers started, too
    os._exit(_ORPHANED)
