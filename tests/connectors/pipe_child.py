"""A process of a pipeline, which may be told to die at a failpoint.

    ERGON_FAILPOINTS=connector.jobs.settling.before=kill python pipe_child.py WHAT NODE STORE FOLDER

``pipe`` turns facts of a node into jobs; ``work`` works on these jobs. Each effect is a line of
``FOLDER/effects``, on disk before the outcome is told.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.ports.transaction import Transaction
from ergon_framework.task.ready import ConsumerTask

POLICY = {"loop": {"concurrency": {"value": 4}, "batch": {"size": 4}, "streaming": False}}


class Pipe(ConsumerTask):
    """Each fact becomes a job."""

    def process_transaction(self, transaction: Transaction) -> None:
        """The job has the fact's id: the same fact again is the same job."""
        job = transaction.derive(
            transaction.payload["object_json"], id=f"job-{transaction.transaction_id}"
        )
        self.connectors["jobs"].dispatch_transactions([job])


class Work(ConsumerTask):
    """Each job leaves a line."""

    folder: Path

    def process_transaction(self, transaction: Transaction) -> None:
        """One line, on disk."""
        with open(self.folder / "effects", "ab", buffering=0) as effects:
            effects.write(b"%d\n" % transaction.payload["n"])
            os.fsync(effects.fileno())


def main(what: str, node: str, store: str, folder: Path) -> None:
    """Until there is nothing left."""
    if what == "pipe":
        with (
            BoundaryConnector(node, consumer="pipe", log="outbound", lease=0.3) as facts,
            JobsConnector(store, handler="work") as jobs,
        ):
            task = Pipe(connectors={"facts": facts, "jobs": jobs})
            policy = {**POLICY, "steps": {"fetch": {"connector_name": "facts"}}}
            task.consume_transactions(policy)
    else:
        with JobsConnector(store, handler="work", lease=0.5) as jobs:
            work = Work(connectors={"jobs": jobs})
            work.folder = folder
            work.consume_transactions(POLICY)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
