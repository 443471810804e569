"""A conversation with one executor process: requests, and the lines that came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from ergon_framework.testing.suites.executor.lines import Reply, line_of, reply_of, shown
from ergon_framework.testing.suites.executor.process import Process
from ergon_framework.testing.suites.framework import fail

Request = Mapping[str, Any]
GRACE = 3  # a process that is just starting may take so many times longer
MOST_LOSSES = 3
HURRY = 2.0
MOST_LINES = 2_000  # from one process; no check asks for so many


class Patience:
    """How long to wait for an answer; less when waiting was in vain again and again."""

    def __init__(self, seconds: float) -> None:
        self.longest = seconds
        self.losses = 0

    @property
    def seconds(self) -> float:
        """The longest wait for one answer."""
        return self.longest if self.losses < MOST_LOSSES else min(self.longest, HURRY)


class Conversation:
    """What was said to a process, and everything it said."""

    def __init__(self, process: Process, patience: Patience) -> None:
        self.process = process
        self.patience = patience
        self.replies: list[Reply] = []
        self.has_junk = False
        self._sent: set[str] = set()
        self._open: list[Reply] = []  # nobody has asked for them yet
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    # ---- saying ---------------------------------------------------------------------------------

    def send(self, request: Request, *, line: bytes | None = None) -> str:
        """Send a request, in its usual form or as this line; its job_id."""
        self.say(line_of(request) if line is None else line)
        job_id = str(request["job_id"])
        self._sent.add(job_id)
        return job_id

    def say(self, data: bytes) -> None:
        """Send bytes that belong to a request, or to nothing."""
        self.process.send(data)

    def junk(self, data: bytes) -> None:
        """Send what is no request; from now on an outcome may belong to that."""
        self.has_junk = True
        self.process.send(data)

    # ---- hearing --------------------------------------------------------------------------------

    def ask(self, request: Request, *, line: bytes | None = None) -> Reply:
        """Send a request and wait for its answer."""
        return self.answer(self.send(request, line=line))

    def answer(self, job_id: str, *, after: float = 0.0) -> Reply:
        """The answer to a request that takes so long; fails the check when none comes in time."""
        found: list[Reply] = []

        def is_there() -> bool:
            reply = self._take(job_id)
            if reply is not None:
                found.append(reply)
            return reply is not None or self.process.is_flooding

        seconds = self._longest() + after
        self.process.wait(is_there, seconds)
        if not found:
            if not self.process.is_over():
                self.patience.losses += 1
            fail(f"no outcome came for job_id {shown(job_id)}: {self.why_not(seconds)}")
        return found[0]

    def answers(self, job_ids: Iterable[str], *, after: float = 0.0) -> list[Reply]:
        """One answer to each of these requests."""
        return [self.answer(job_id, after=after) for job_id in job_ids]

    def known(self) -> list[Reply]:
        """Every whole line so far."""
        output = self.process.output
        while (end := output.find(b"\n", self._read)) >= 0 and len(self.replies) < MOST_LINES:
            reply = reply_of(bytes(output[self._read : end]))
            self._read = end + 1
            self.replies.append(reply)
            if reply.fields is not None:
                self._open.append(reply)
        if len(self.replies) >= MOST_LINES:
            self.process.stop_flood()
        return self.replies

    def strays(self) -> list[Reply]:
        """The lines that are no outcome of a request that was sent."""
        return [one for one in self.known() if one.problem or not self._is_expected(one)]

    def count(self, job_id: str) -> int:
        """How many outcomes a request has had."""
        return sum(one.job_id == job_id for one in self.known())

    def unfinished(self) -> bytes:
        """What stands after the last newline."""
        self.known()
        return bytes(self.process.output[self._read :])

    def _take(self, job_id: str) -> Reply | None:
        """The next outcome for a request.

        An outcome with an id nobody asked about must be meant for it too, unless there was junk:
        that the id is wrong has checks of its own, and the others should not wait in vain for it.
        """
        self.known()
        for reply in self._open:
            if reply.job_id == job_id or not (self.has_junk or self._is_expected(reply)):
                self._open.remove(reply)
                return reply
        return None

    def _is_expected(self, reply: Reply) -> bool:
        return isinstance(reply.job_id, str) and reply.job_id in self._sent

    def _longest(self) -> float:
        return self.patience.seconds * (1 if self.replies else GRACE)

    # ---- the end --------------------------------------------------------------------------------

    def end(self) -> int | None:
        """End its input and give its exit code; None when it goes on."""
        self.process.end_input()
        return self.process.exit_code(self.patience.seconds)

    def why_not(self, seconds: float) -> str:
        """Why there is no answer, as far as one can see from outside."""
        process = self.process
        code = process.exit_code(0)
        reasons = [f"the process ended with {told(code)}"] if code is not None else []
        if process.is_flooding:
            reasons.append("it floods its standard output")
        wrong = [one for one in self.known() if one.problem]
        if wrong:
            reasons.append(f"a line it wrote {wrong[0].problem}: {wrong[0]}")
        elif self.unfinished():
            reasons.append(f"it wrote a line without its end: {shown(self.unfinished())}")
        elif code is None and not process.is_flooding:
            reasons.append(f"it was silent for {seconds:.1f} s")
        if process.log.strip():
            last = process.log.strip().splitlines()[-1]
            reasons.append(f"last on its standard error: {shown(last)}")
        return "; ".join(reasons)


def told(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "no exit code, it still runs"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
