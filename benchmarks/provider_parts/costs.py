"""What turns amount to: the cost of a call, beside others and beside what is good enough."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from comparison import Entry, FailedError, Record, Turn

By = Literal["processor", "wall", "rate"]
"""What is compared: processor time or time of a call, where less is better, or calls per second."""


@dataclass(frozen=True)
class Goal:
    """What is good enough; each is judged for itself, and all must hold."""

    us: float | None = None  # at most, of a call: processor time where that is compared
    extra_us: float | None = None  # at most, of ours beyond theirs
    p95_us: float | None = None
    p99_us: float | None = None
    rate: float | None = None  # at least, per second
    most: float | None = None  # the ratio, where less is better
    least: float | None = None  # the ratio, where more is better

    def judged(self, made: Record, by: By) -> Record:
        """The target in words, and whether the record meets it."""
        us = "cpu_us" if by == "processor" else "us"
        checks = (
            (self.us, us, "<= {:g} us", True),
            (self.extra_us, "extra_us", "<= {:g} us more", True),
            (self.p95_us, "p95_us", "p95 <= {:g} us", True),
            (self.p99_us, "p99_us", "p99 <= {:g} us", True),
            (self.rate, "per_second", ">= {:,.0f}/s", False),
            (self.most, "ratio", "<= {:g} x", True),
            (self.least, "ratio", ">= {:g} x", False),
        )
        wanted = [(bound, name, text, is_most) for bound, name, text, is_most in checks
                  if bound is not None and name in made]  # fmt: skip
        if not wanted:
            return {}  # nothing to compare with: whom it is about was skipped
        return {
            "target": ", ".join(text.format(bound) for bound, _, text, _ in wanted),
            "met": all(made[name] <= bound if is_most else made[name] >= bound
                       for bound, name, _, is_most in wanted),
        }  # fmt: skip


def entry(who: str, make: Callable[[], Callable[[], Turn]]) -> Entry:
    """A contestant that is made now, and left out with the reason when it cannot be."""
    try:
        return Entry(who, make())
    except (ImportError, FailedError, OSError) as error:
        return Entry(who, _nothing, skipped=f"{type(error).__name__}: {error}"[:300])


def _nothing() -> Turn:
    raise FailedError("it was not made")


def records(
    case: str,
    ours: Entry,
    peers: Sequence[tuple[Entry, Goal | None]],
    goal: Goal | None = None,
    *,
    by: By = "processor",
) -> list[Record]:
    """One for us, and one for each peer with our figure divided by theirs."""
    return [
        record(case, ours, None, goal, by=by),
        *(record(case, peer, ours, wanted, by=by) for peer, wanted in peers),
    ]


def record(case: str, who: Entry, ours: Entry | None, goal: Goal | None, *, by: By) -> Record:
    """Medians over the rounds; a ratio is of two turns in the same round."""
    made: Record = {"case": case, "who": who.who}
    if who.skipped is not None:
        return made | {"skipped": who.skipped}
    wall = [turn.seconds / turn.count * 1e6 for turn in who.turns]
    made |= {
        "us": _short(statistics.median(wall)),
        "us_spread": [_short(min(wall)), _short(max(wall))],
        "per_second": round(1e6 / statistics.median(wall), 1),
        "rounds": len(wall),
        "count": who.turns[0].count,
    }
    if all(turn.burnt for turn in who.turns):
        made["cpu_us"] = _short(statistics.median(_figure(turn, "processor") for turn in who.turns))
    if who.turns[0].taken:
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
            made[f"{name}_us"] = _short(_quantile(who.turns, part))
    if ours is not None and ours.skipped is None:
        made |= compared(ours, who, by)
    return made | (goal.judged(made, by) if goal is not None else {})


def compared(ours: Entry, theirs: Entry, by: By) -> Record:
    """Our figure divided by theirs, round by round."""
    pairs = [(_figure(our, by), _figure(their, by))
             for our, their in zip(ours.turns, theirs.turns, strict=True)]  # fmt: skip
    quotients = [our / their for our, their in pairs]
    made: Record = {
        "ratio": _short(statistics.median(quotients)),
        "ratio_spread": [_short(min(quotients)), _short(max(quotients))],
        "ratio_of": by,
    }
    if by != "rate":
        made["extra_us"] = _short(statistics.median(our - their for our, their in pairs))
    return made


def _figure(turn: Turn, by: By) -> float:
    if by == "rate":
        return turn.rate
    return (turn.burnt if by == "processor" else turn.seconds) / turn.count * 1e6


def _quantile(turns: Sequence[Turn], part: float) -> float:
    """The median over the rounds of one quantile of each."""
    found = [sorted(turn.taken)[min(len(turn.taken) - 1, int(len(turn.taken) * part))]
             for turn in turns]  # fmt: skip
    return statistics.median(found) * 1e6


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")
