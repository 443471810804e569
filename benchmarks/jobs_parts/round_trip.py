"""One request to a warm executor and its answer, beside the same bytes through a bare pipe.

``python -m jobs_parts.round_trip CHUNKS`` prints milliseconds of both as JSON. Ours go through the
orchestrator's own loop, process, child and session, one in flight, as they do in a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from ergon_framework.core.executor_protocol import Reply, Status, encode_request
from ergon_framework.core.failure import Failure
from ergon_framework.jobs.child_process import ChildProcess
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.event_loop import EventLoop
from ergon_framework.jobs.executor_process import ExecutorProcess, PendingRequest
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.ports.jobstore import ClaimedJob
from jobs_parts.ours import COMMAND

IN_CHUNK = 100
TIMEOUT = 60.0
_ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"


class ExecutorRoundTrip:
    """A process, and who listens to it."""

    def __init__(self) -> None:
        self._loop = EventLoop()
        self._child = ChildProcess(COMMAND, {**os.environ, "ERGON_MAX_IN_FLIGHT": "1"}, None)
        settings = ExecutorSettings(command=COMMAND, pool_size=1)
        self._runner = ExecutorProcess(self._child, settings, self._loop, self)
        self._reply: Reply | None = None
        while not self._runner.is_up:
            self._loop.turn(self._loop.now() + TIMEOUT)

    def measure(self, number: int) -> float:
        """Seconds of one round trip."""
        claim = _claim(number)
        began = time.perf_counter()
        self._reply = None
        self._runner.give(claim, request(claim.job), TIMEOUT)
        self._runner.flush()
        while self._reply is None:
            self._loop.turn(self._loop.now() + TIMEOUT)
        seconds = time.perf_counter() - began
        if self._reply.job_id != claim.job.id or self._reply.status is not Status.SUCCESS:
            raise RuntimeError(f"job {number} was answered with {self._reply.status}")
        return seconds

    def close(self) -> None:
        """Let the executor leave."""
        self._runner.close_input()
        while not self._child.has_exited():
            self._loop.turn(self._loop.now() + 0.01)
        self._runner.finish_requests()
        self._loop.close()

    # ---- what the process tells ----

    def answered(self, process: ExecutorProcess, request: PendingRequest, reply: Reply) -> None:
        """The answer we wait for."""
        self._reply = reply

    def answer_unreadable(
        self, process: ExecutorProcess, request: PendingRequest, failure: Failure
    ) -> None:
        """An answer that cannot be read."""
        raise RuntimeError(failure.message)

    def strayed(self, process: ExecutorProcess, reason: str) -> None:
        """A line that is no answer."""
        raise RuntimeError(reason)

    def became_ready(self, process: ExecutorProcess) -> None:
        """It said so."""

    def exited(self, process: ExecutorProcess) -> None:
        """It ended; only at the end, or the next trip fails."""


class PipeRoundTrip:
    """A child that writes back what it reads."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(  # noqa: S603 - an echo
            [sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("no pipes")
        self._write, self._read = self._child.stdin.fileno(), self._child.stdout.fileno()

    def measure(self, number: int) -> float:
        """Seconds of one round trip."""
        line = request(_claim(number).job)
        began = time.perf_counter()
        os.write(self._write, line)
        left = len(line)
        while left:
            left -= len(os.read(self._read, 65536))
        return time.perf_counter() - began

    def close(self) -> None:
        """Let the child see the end."""
        self._child.communicate()


def request(job: ClaimedJob) -> bytes:
    """The line that a pool would write."""
    return encode_request(
        job_id=job.id,
        function_name=job.handler,
        args=job.args,
        kwargs=job.kwargs,
        attempt=job.attempts + 1,
        enqueued_at=job.created_at,
        queue_name=job.queue,
        deadline_at=time.time() + TIMEOUT,
        trace_context=job.trace_context,
        worker_id="bench",
    )


def _claim(number: int) -> Claim:
    now = time.time()
    job = ClaimedJob(
        key=number, fence=1, id=f"01J0000000{number:016d}", handler="noop", executor="",
        queue="default", args=b"[%d]" % number, kwargs=b"{}", attempts=0, deliveries=1, excused=0,
        is_solo=False, created_at=now, claimed_at=now, timeout=None, max_attempts=None,
        max_deliveries=None, retry=None, result_ttl=None, correlation_id=None, trace_context=None,
    )  # fmt: skip
    return Claim(job)


def main() -> None:
    """Alternate between the two."""
    ours, pipe = ExecutorRoundTrip(), PipeRoundTrip()
    measured: dict[str, list[float]] = {"ours": [], "pipe": []}
    for chunk in range(int(sys.argv[1]) + 1):
        for name, one in (("ours", ours), ("pipe", pipe)):
            trips = [one.measure(chunk * IN_CHUNK + n) * 1e3 for n in range(IN_CHUNK)]
            if chunk:  # the first warms up
                measured[name] += trips
    ours.close()
    pipe.close()
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
