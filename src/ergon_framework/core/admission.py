"""Which due jobs may start, where limits have to hold: decided on what was counted under locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple


class Applicant(NamedTuple):
    """A due job that could start, as far as limits are concerned."""

    place: tuple[int, float, int]
    """By priority and age; the last number is the job's own. The least goes first."""
    line: int
    """Which of the lines it stands in; each has room for so many."""
    queue: str
    expires_at: float | None = None
    key: str | None = None
    """Its limit key, …"""
    limit: int = 1
    """… of which so many jobs may run at once."""

    @property
    def number(self) -> int:
        """Which job it is."""
        return self.place[-1]


@dataclass(slots=True)
class Admission:
    """What becomes of applicants, by number; whoever is not mentioned stays where it is."""

    admitted: list[int] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)  # wait for their limit key
    outdated: list[int] = field(default_factory=list)
    passed_over: list[int] = field(default_factory=list)  # could not be judged this time


def admit(
    applicants: Iterable[Applicant],
    rooms: Sequence[int],
    gates: Mapping[str, int],
    running: Mapping[str, int],
    now: float,
    *,
    unknown: Collection[str] = (),
) -> Admission:
    """Of several lines, each with so much room: who may start, and who before them may not.

    Lines of one queue share what its gate lets through. Whoever comes first by priority and age
    gets that, and a limit key, in whichever line it stands. Of the keys that are ``unknown``,
    nobody knows how many run: their jobs neither start nor wait for the key, and take no room.
    """
    admission = Admission()
    left, open_gates, active = list(rooms), dict(gates), Counter(running)
    for each in sorted(applicants, key=attrgetter("place")):
        if left[each.line] == 0 or open_gates[each.queue] == 0:
            continue
        if each.key is not None and each.key in unknown:
            admission.passed_over.append(each.number)
        elif each.expires_at is not None and each.expires_at <= now:
            admission.outdated.append(each.number)
        elif each.key is not None and active[each.key] >= each.limit:
            admission.blocked.append(each.number)
        else:
            admission.admitted.append(each.number)
            left[each.line] -= 1
            open_gates[each.queue] -= 1
            if each.key is not None:
                active[each.key] += 1
    return admission
