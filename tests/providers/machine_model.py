"""What a provider must do, written once more and plainly: the model of the state machine test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FAILURES = {
    "timeout",
    "connection_error",
    "dependency_unavailable",
    "response_invalid",
    "internal_error",
}
RETRIED = {"timeout", "connection_error", "dependency_unavailable", "rate_limited"}
REFUNDED_UNSENT = {"connection_error", "bad_request"}

ATTEMPTS = 3
BASE = 0.5
BUDGET = 20.0
THRESHOLD = 3
OPEN_FOR = 5.0
LIMIT = 5
WINDOW = 60.0
DEFAULT_PAUSE = 1.0


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C."""


@dataclass
class Step:
    """What one attempt does."""

    reason: str | None = None
    """None: it succeeds."""
    never_sent: bool = False
    lasts: float = 0.0
    asks_for: float | None = None
    """A pause."""
    is_interrupted: bool = False
    inner: list[Step] | None = None
    """Another call that is made, from beginning to end, while this one is under way."""
    wait_is_interrupted: bool = False
    """Not the attempt, but the wait after it."""


@dataclass
class Circuit:
    """A breaker of one tenant."""

    state: str = "closed"
    failures: int = 0
    until: float = 0.0
    changes: int = 0
    is_probing: bool = False

    def refuses(self, now: float) -> bool:
        """Whether a call would not be let in."""
        if self.state == "open":
            return now < self.until
        return self.state == "half_open" and self.is_probing

    def enter(self) -> int:
        """Let a call in that is not refused."""
        if self.state == "open":
            self.state, self.changes = "half_open", self.changes + 1
        if self.state == "half_open":
            self.is_probing = True
        return self.changes

    def leave(self, entered: int, vote: str, now: float) -> None:
        """The end of a call that was let in."""
        if entered != self.changes:
            return
        was_probe = self.state == "half_open"
        self.is_probing = False
        if vote == "failure":
            self.failures += 1
            if was_probe or self.failures >= THRESHOLD:
                self.state, self.until = "open", now + OPEN_FOR
                self.changes += 1
        elif vote == "success":
            self.failures = 0
            if was_probe:
                self.state, self.changes = "closed", self.changes + 1


@dataclass
class Ended:
    """What is expected of a call."""

    reason: str | None
    attempts: int
    outcomes: list[str]


@dataclass
class Model:
    """One tenant's lane, with a clock that the calls move."""

    unit: str
    scope: str
    now: float = 0.0
    circuit: Circuit = field(default_factory=Circuit)
    paused_until: float = 0.0
    used: dict[int, int] = field(default_factory=dict)

    @property
    def window(self) -> int:
        """The window of now."""
        return int(self.now // WINDOW)

    @property
    def used_now(self) -> int:
        """Units of it that are taken."""
        return self.used.get(self.window, 0)

    def call(self, steps: list[Step]) -> Ended:
        """Make one call; it may end in an interrupt."""
        return _Call(self, list(steps)).run()


class _Call:
    def __init__(self, model: Model, steps: list[Step]) -> None:
        self.model = model
        self.steps = steps
        self.deadline = model.now + BUDGET
        self.taken: list[int] = []
        self.entered: int | None = None
        self.made: list[Step] = []
        self.outcomes: list[str] = []

    def run(self) -> Ended:
        try:
            return self._run()
        except Interrupted:
            self._leave("neutral")
            if self.model.unit == "attempt":
                del self.taken[: len(self.made)]
            elif self.made and not self._is_unsent():
                self.taken.clear()  # an attempt was sent: it is paid for
            self._give_back(self.taken)
            raise

    def _run(self) -> Ended:
        refused = self._gates()
        while refused is None:
            step = self.steps.pop(0) if self.steps else Step()
            self._attempt(step)
            self.made.append(step)
            if step.reason is None:
                self._leave("success")
                self.outcomes.append("success")
                return Ended(None, len(self.made), self.outcomes)
            wait = self._wait_after(step)
            is_last = wait is None
            if is_last or self.model.scope == "attempt":
                self._leave("failure" if step.reason in FAILURES else "neutral")
            if self.model.unit == "attempt" and is_unsent(step):
                self._give_back([self.taken.pop()])
                self.taken.append(-1)
            if wait is None:
                refused = step.reason
                break
            self.outcomes.append("retry")
            if step.wait_is_interrupted:
                raise Interrupted
            self.model.now += wait
            refused = self._gates()
        return self._failed(refused)

    def _failed(self, refused: str) -> Ended:
        last = self.made[-1] if self.made else None
        if self.entered is not None:
            is_failure = last is not None and last.reason in FAILURES
            self._leave("failure" if is_failure else "neutral")
        if last is None:
            self._give_back(self.taken)
            return Ended(refused, 0, ["failed"])
        if self.model.unit == "attempt":
            self._give_back(self.taken[len(self.made) :])
        elif self._is_unsent():
            self._give_back(self.taken)
        self.outcomes = ["retry"] * (len(self.made) - 1) + ["failed"]
        return Ended(last.reason, len(self.made), self.outcomes)

    def _is_unsent(self) -> bool:
        is_refunded = self.made[-1].reason in REFUNDED_UNSENT
        return is_refunded and all(step.never_sent for step in self.made)

    def _gates(self) -> str | None:
        """Why the next attempt is not made."""
        model = self.model
        while True:
            if self.entered is None and model.circuit.refuses(model.now):
                return "circuit_open"
            if model.now >= model.paused_until:
                break
            if model.paused_until >= self.deadline:
                return "rate_limited"
            model.now = model.paused_until
        if not self.taken or (model.unit == "attempt" and len(self.taken) == len(self.made)):
            if model.used_now >= LIMIT:
                return "quota_exhausted"
            model.used[model.window] = model.used_now + 1
            self.taken.append(model.window)
        if self.entered is None:
            if model.circuit.refuses(model.now):
                return "circuit_open"
            self.entered = model.circuit.enter()
        return None

    def _attempt(self, step: Step) -> None:
        if step.inner is not None:
            self.model.call(step.inner)
        self.model.now += step.lasts
        if step.is_interrupted:
            raise Interrupted

    def _wait_after(self, step: Step) -> float | None:
        """Seconds until the next attempt; None when there is none."""
        model = self.model
        if step.reason == "rate_limited":
            pause = DEFAULT_PAUSE if step.asks_for is None else step.asks_for
            model.paused_until = max(model.paused_until, model.now + pause)
        if step.reason not in RETRIED or len(self.made) >= ATTEMPTS:
            return None
        wait = max(BASE * 2 ** (len(self.made) - 1), step.asks_for or 0.0)
        return None if model.now + wait >= self.deadline else wait

    def _leave(self, vote: str) -> None:
        if self.entered is not None:
            self.model.circuit.leave(self.entered, vote, self.model.now)
            self.entered = None

    def _give_back(self, windows: list[int]) -> None:
        for window in windows:
            if window >= 0 and window == max(self.model.used):
                self.model.used[window] -= 1


def is_unsent(step: Step) -> bool:
    """Whether an attempt's own unit comes back."""
    return step.never_sent and step.reason in REFUNDED_UNSENT


def outcome_of(value: Any) -> str:
    """A word as rows have it."""
    return str(getattr(value, "value", value))
