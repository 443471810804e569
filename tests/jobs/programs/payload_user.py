"""Enqueues jobs with large arguments, or runs them: see ``main``."""

from __future__ import annotations

import sys
from pathlib import Path

from ergon_framework.app.jobs import JobSetup
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.object_sweep import ObjectSweep  # noqa: F401 - declares its failpoints
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.store_urls import open_store

LARGE = "Alexandria-4711 " * 400
APP = """
from ergon_framework.executor import Registry

registry = Registry()

@registry.handler
def echo(*args, **kwargs):
    return [args, kwargs]
"""


def main(what: str, folder: Path, number: int) -> None:
    """``enqueue FOLDER NUMBER`` enqueues so many jobs, ``work FOLDER 0`` runs what is due."""
    url = f"sqlite:///{folder}/work.db"
    codec = {"objects": str(folder / "objects"), "objects_above": 1024}
    settings = JobsSettings.model_validate({"codec": codec, "lease": 2.0, "grace": 5.0})
    if what == "enqueue":
        with JobClient(url, settings=settings) as client:
            for each in range(number):
                client.enqueue("echo", [LARGE, each])
        return
    (folder / "app.py").write_text(APP)
    command = sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry"
    executor = ExecutorSettings(command=command, pool_size=1, startup_grace=60.0)
    setup = JobSetup(url, settings, {"python": executor})
    store = open_store(url)
    setup.worker(store, burst=True).run()
    store.close()


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
