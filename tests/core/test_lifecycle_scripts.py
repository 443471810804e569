"""Every short script through the machine, beside a reference that knows nothing of its table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum

import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.retry import RFC_SUCCESS_RETRIES, Backoff, RetryRule
from ergon_framework.core.transaction_lifecycle import (
    BEGAN,
    RETURNED,
    STOPPED,
    WOKE,
    CallHook,
    LifecycleAction,
    LifecycleCursor,
    LifecycleEvent,
    LifecycleRule,
    Raised,
    Sleep,
    StepRule,
    TimedOut,
    TimeoutScope,
    advance,
)

Script = tuple[str, ...]
Attempts = tuple[int, int, int]

LETTERS: dict[str, LifecycleEvent] = {
    "ok": RETURNED,
    "business": Raised(Failure(Kind.REJECTED, "business")),
    "system": Raised(Failure(Kind.TRANSIENT, "system")),
    "step_timeout": TimedOut(TimeoutScope.STEP),
    "lifecycle_timeout": TimedOut(TimeoutScope.LIFECYCLE),
    "stop": STOPPED,
}
INTERRUPTS = ("lifecycle_timeout", "stop")
LONGEST = 6  # three steps of two attempts: every script of this length has come to an end
TIMEOUTS = ("step_timeout", "lifecycle_timeout")
WAITS = {"process": 1.0, "success": 10.0, "exception": 100.0}


class Waits(Enum):
    """What lies between two attempts."""

    NONE = "no wait"
    SLEPT = "a wait that is over before the next letter"
    CUT = "a wait in which a timeout or a stop may arrive"


class ScriptTooShortError(Exception):
    """The script ends before the transaction does."""


# ---- the machine --------------------------------------------------------------------------------


def machine(script: Script, attempts: Attempts, waits: Waits) -> list[str]:
    """What the machine under test answers to the letters, as lines."""
    rule = rule_for(attempts, waits)
    cursor = LifecycleCursor(0.0)
    action = advance(rule, cursor, BEGAN, 0.0, 0.5)
    lines = [line(action)]
    for letter in script:
        if isinstance(action, Sleep) and not (waits is Waits.CUT and letter in INTERRUPTS):
            action = advance(rule, cursor, WOKE, 0.0, 0.5)
            lines.append(line(action))
        action = advance(rule, cursor, LETTERS[letter], 0.0, 0.5)
        lines.append(line(action))
    return lines


def rule_for(attempts: Attempts, waits: Waits) -> LifecycleRule:
    """Attempts for each step, and a wait by which each step can be told."""
    bases = WAITS.values() if waits is not Waits.NONE else (0.0, 0.0, 0.0)
    process, success, exception = (
        RetryRule(number, Backoff(base)) for number, base in zip(attempts, bases, strict=True)
    )
    refusals_too = RetryRule(success.attempts, success.backoff, RFC_SUCCESS_RETRIES)
    return LifecycleRule(StepRule(process), StepRule(refusals_too), StepRule(exception))


def line(action: LifecycleAction) -> str:
    """An action as a line of text."""
    if isinstance(action, CallHook):
        return f"call {action.step.value} {action.attempt}"
    if isinstance(action, Sleep):
        return f"sleep {action.seconds}"
    codes = [one.code if one else "-" for one in (action.failure, action.handler_failure)]
    return f"end {action.how.value} {codes[0]} {codes[1]}"


# ---- the reference ------------------------------------------------------------------------------


class Reference:
    """The specifications read aloud, with loops and ifs; it shares nothing with the machine."""

    def __init__(self, script: Script, attempts: Attempts, waits: Waits) -> None:
        self.letters = list(script)
        self.attempts = attempts
        self.waits = waits
        self.lines: list[str] = []

    def run(self) -> None:
        """One transaction, from the first call to its end."""
        processed = self.step("process", self.attempts[0], retries_business=False)
        if processed == "stop":
            self.lines.append("end aborted - -")
            return
        if processed == "ok":
            cause = self.step("success", self.attempts[1], retries_business=True)
            if cause == "stop":
                self.lines.append("end aborted - -")
                return
            if cause == "ok":
                self.lines.append("end succeeded - -")
                return
        else:
            cause = processed
        handled = self.step("exception", self.attempts[2], retries_business=False)
        if handled == "stop":
            self.lines.append(f"end aborted {cause} -")
            return
        how = "timed_out" if cause in TIMEOUTS else "failed"
        problem = "-" if handled == "ok" else handled
        self.lines.append(f"end {how} {cause} {problem}")

    def step(self, name: str, attempts: int, *, retries_business: bool) -> str:
        """All attempts of a step; the letter that ended it."""
        letter = ""
        for number in range(attempts):
            if number > 0 and self.waits is not Waits.NONE:
                self.lines.append(f"sleep {WAITS[name]}")
                if self.waits is Waits.CUT and self.letters and self.letters[0] in INTERRUPTS:
                    return self.letters.pop(0)
                if not self.letters:
                    raise ScriptTooShortError
            self.lines.append(f"call {name} {number}")
            if not self.letters:
                raise ScriptTooShortError
            letter = self.letters.pop(0)
            if letter in ("ok", *INTERRUPTS):
                return letter
            if letter == "business" and not retries_business:
                return letter
        return letter


def scripts(attempts: Attempts, waits: Waits) -> Iterator[tuple[Script, list[str], bool]]:
    """Every script that has not ended earlier, what must happen, and whether it comes to an end.

    What follows an end changes nothing, which is tested on its own; so longer scripts are cut.
    """
    growing: list[Script] = [()]
    while growing:
        script = growing.pop()
        reference = Reference(script, attempts, waits)
        try:
            reference.run()
        except ScriptTooShortError:
            yield script, reference.lines, False
            if len(script) < LONGEST:
                growing.extend((*script, letter) for letter in LETTERS)
        else:
            yield script, reference.lines, True


@pytest.mark.req(
    "RFC-004:6a",
    "RFC-004:6.1a",
    "RFC-004:6.1b",
    "RFC-004:6.1c",
    "RFC-004:6.2a",
    "RFC-004:6.2b",
    "RFC-004:6.2c",
    "RFC-004:6.3a",
    "RFC-004:6.3b",
    "RFC-004:6.3c",
    "RFC-004:10a",
    "RFC-004:10b",
    "RFC-004:10e",
    "RFC-004:10f",
    "RFC-004:11.1b",
    "RFC-004:11.1c",
    "RFC-004:14c",
    "RFC-004:14d",
    "RFC-004:14f",
    "RFC-004:15b",
    "RFC-004:15c",
    "RFC-005:6a",
    "RFC-005:7.1a",
    "RFC-005:7.1b",
    "RFC-005:7.1c",
    "RFC-005:8c",
    "RFC-005:8d",
    "RFC-005:8e",
    "RFC-005:8f",
    "RFC-005:9a",
    "RFC-005:9b",
    "RFC-005:9c",
    "RFC-005:9d",
    "RFC-005:9e",
    "RFC-005:9f",
    "RFC-005:16c",
    "RFC-005:16d",
    "RFC-005:17d",
    "RFC-005:17e",
    "R0-I3",
    "R0-I8",
    "R2-E1",
    "R2-E2",
    "R3-ST1",
    "R3-ST2",
    "T3.4",
    "T3.5",
    "T3.6",
)
@pytest.mark.parametrize("waits", list(Waits))
@pytest.mark.parametrize("attempts", list(itertools.product((1, 2), repeat=3)))
def test_every_short_script_goes_as_the_reference_says(attempts: Attempts, waits: Waits) -> None:
    """Calls, sleeps and the end agree line by line, for every way a transaction can go."""
    ended = 0
    for script, expected, is_over in scripts(attempts, waits):
        assert machine(script, attempts, waits) == expected, script
        assert is_over or len(script) < LONGEST, f"{script} should have come to an end"
        ended += is_over
    assert ended >= 50  # with one attempt each: 6 * 6 endings after ok, and 6 for each failure


@pytest.mark.req("R0-I3")
def test_what_follows_an_end_changes_nothing() -> None:
    """A finished script extended by any letter repeats its last line."""
    attempts: Attempts = (1, 2, 1)
    for script, expected, is_over in scripts(attempts, Waits.SLEPT):
        for letter in LETTERS if is_over else ():
            assert machine((*script, letter), attempts, Waits.SLEPT) == [*expected, expected[-1]]


@pytest.mark.req("R0-I3")
def test_the_reference_reaches_every_ending() -> None:
    """The comparison would be worth little if some ending never came up."""
    endings = {
        lines[-1].split()[1] for _, lines, is_over in scripts((2, 2, 2), Waits.CUT) if is_over
    }
    assert endings == {"succeeded", "failed", "timed_out", "aborted"}
