"""Jobs in ``ergon.db`` beside a script or its settings, while another store is used by now.

A script with ``App()`` keeps its jobs there until settings name another store. Nobody looks at the
old file from then on: whoever starts a worker, or looks for a job, is told of what waits in it.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import SCRIPT_FILE, base_of, is_in_memory, store_url
from ergon_framework.errors import ErgonError
from ergon_framework.storage.urls import SQLITE, file_of, given_options, store_operand

logger = logging.getLogger("ergon.app")

MAX_COUNTED = 1000
"""The most jobs that are counted."""


@dataclass(frozen=True, slots=True)
class EarlierStore:
    """A file with jobs that wait, and the store that is used instead."""

    file: Path
    waiting: Counter[str]
    """How many jobs wait, by the executor that they name; empty: they name none."""
    settings: Settings
    used: str

    @property
    def url(self) -> str:
        """How a command names the file."""
        return f"{SQLITE}{self.file}"

    @property
    def found(self) -> str:
        """What was found, in words."""
        number = self.waiting.total()
        count = f"more than {MAX_COUNTED:,}" if number > MAX_COUNTED else f"{number:,}"
        jobs = "1 job waits" if number == 1 else f"{count} jobs wait"
        file = self.settings.file
        why = "another store is used now"
        if file is not None:
            why = f"{file.absolute()} names another store"
        return f"{jobs} in {self.file}, where nobody looks: {why}"

    def remedy(self, run: str | None = "") -> str:
        """The commands that run and that move the jobs.

        ``run`` is one that starts their App, if it is known; None: no command would run them there.
        """
        move = f"ergon move {store_operand(self.url)} {store_operand(self.used)} --shut"
        moved = f"this moves them while the other store is empty:  {move}"
        return moved if run is None else f"this runs them:  {self._run_command(run)}  and {moved}"

    def _run_command(self, run: str) -> str:
        script = next((each for each in map(self._script, self.waiting) if each), None)
        if not run and script is not None:
            run = f"ergon run {shlex.quote(str(script))}"
        if not run:
            file = self.settings.file
            options = given_options(None if file is None else file.absolute(), self.url)
            return f"ergon worker{options} --burst"
        return f"ERGON_JOBS__STORE={shlex.quote(self.url)} {run} --burst"

    def _script(self, executor: str) -> Path | None:
        """The script that jobs name as their executor, if it is beside their file."""
        if not executor or Path(executor).name != executor:
            return None
        script = self.file.parent / f"{executor}.py"
        return script if script.is_file() else None


def earlier_store(
    settings: Settings,
    url: str = "",
    *,
    home: Path | None = None,
    executors: Collection[str] = (),
) -> EarlierStore | None:
    """What waits in the store that was used before these settings named another.

    ``url`` is the store that is used, by default that of the settings; ``home`` the folder of a
    script. With ``executors`` only jobs count that name one of them. Nothing is made or changed.
    """
    file = (home or base_of(settings)).absolute() / SCRIPT_FILE
    if not file.is_file():  # as almost everywhere
        return None
    jobs = settings.extensions.get("jobs")
    used = url or store_url(settings, None if jobs is None else jobs.store)
    try:
        if not used or is_in_memory(used) or _is_file(used, file):
            return None
        waiting = _waiting_in(file)
    except ErgonError:  # a move has shut it, or it is none of ours: whoever opens it says so
        return None
    own = Counter({name: n for name, n in waiting.items() if not executors or name in executors})
    return EarlierStore(file, own, settings, used) if own else None


def warn_of_earlier_jobs(found: EarlierStore | None, run: str | None = "") -> None:
    """Log what waits in such a store."""
    if found is not None:
        logger.warning("%s; %s", found.found, found.remedy(run))


def _is_file(url: str, file: Path) -> bool:
    used = file_of(url)
    return used is not None and used.resolve() == file.resolve()


def _waiting_in(file: Path) -> Counter[str]:
    from ergon_framework.core.job import JobStatus
    from ergon_framework.jobs.store_urls import open_store
    from ergon_framework.ports.jobstore import Search
    from ergon_framework.ports.transfer import move_state_of, refuse_unusable

    url = f"{SQLITE}{file}"
    unfinished = tuple(status for status in JobStatus if not status.is_final)
    with closing(open_store(url, read_only=True)) as store:
        refuse_unusable(move_state_of(store), store_operand(url))
        found = islice(store.search(Search(statuses=unfinished)), MAX_COUNTED + 1)
        return Counter(job.executor for job in found)
