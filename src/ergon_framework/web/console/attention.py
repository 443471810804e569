"""What needs a person's attention, in sentences: what happened, what will happen by itself, what to
do next.

Pure: the caller has read queues, workers and the latest dead letters from the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any
from urllib.parse import quote_plus

from ergon_framework.core.text import counted, failure_text, first_names, one_line
from ergon_framework.ports.jobstore import StatusCounts
from ergon_framework.web.console.formatting import Chip, error_family, number, span

MAX_MESSAGE = 120
"""How many characters of an error a sentence quotes."""
BEHIND = 60.0
"""Seconds for which the oldest due job of a queue with workers may have waited."""
MOST_OF_KIND = 10
"""How many entries about things of one kind, such as queues, a page shows."""
_ORDER = ("bad", "warn")


@dataclass(frozen=True, slots=True)
class Concern:
    """One entry of the list."""

    level: str
    subject: str
    text: str
    hint: str
    link: str
    """The page with more about it, below the console."""
    action: str
    """What to do there, in a word or two."""
    command: str = ""
    """The command that does it in a terminal."""

    def document(self) -> dict[str, Any]:
        """The entry as plain values."""
        return {each: getattr(self, each) for each in self.__slots__}


@dataclass(frozen=True, slots=True)
class JobsSeen:
    """What one read of the job store has found, as plain values."""

    now: float
    queues: Sequence[Mapping[str, Any]]
    """The queues, with ``oldest_due`` in seconds; see
    :func:`~ergon_framework.jobs.views.queue_views`.
    """
    workers: Sequence[Mapping[str, Any]]
    dead: Sequence[Mapping[str, Any]]
    """The latest dead-lettered jobs."""
    unsynced: str | None = None
    totals: StatusCounts | None = None
    """The jobs of all queues. None: those of the queues above, which are all."""
    number: int | None = None
    """How many queues there are. None: those above."""
    is_all: bool = True
    """Whether all queues of the store are above."""
    are_more: bool = False
    """Whether there are more queues than the number says."""
    are_more_due: bool = False
    """Whether queues with due jobs are left out above."""

    def total(self, status: str) -> tuple[int, bool]:
        """How many jobs have a status, and whether there are more than that."""
        if self.totals is None:
            return sum(queue["counts"][status] for queue in self.queues), False
        return self.totals.counts.get(status, 0), status in self.totals.more


def _of_part(title: str, code: str) -> Concern:
    # Only a server reads other backends; a terminal uses these words without the server's packages.
    from ergon_framework.web.responses import refusal_of

    problem, remedy = refusal_of(code)
    if problem == "refuses that":
        problem = "refuses to be read"
    hint = "What it keeps is not shown until it does; this page asks again by itself."
    if remedy:
        hint = f"{remedy[:1].upper()}{remedy[1:]}."
    name = title[:1].upper() + title[1:]
    command = ""
    if title.startswith("the zone ") and code == "unavailable":
        hint = "Neither its node nor its folder does. This starts the node, which makes the folder."
        command = "ergon run --all"
    return Concern("bad", name, f"{problem} ({code}).", hint, "/", "Look again", command)


def concerns(seen: JobsSeen | None, away: Iterable[tuple[str, str]]) -> list[Concern]:
    """What needs attention, the worst first. ``away``: backends that do not answer, with their
    error codes.
    """
    found = [_of_part(title, code) for title, code in away]
    if seen is not None:
        found += _of_queues(seen)
        found += _of_dead(seen)
        found += _of_workers(seen.workers)
        if seen.are_more_due:
            text = f"have due jobs, more than are looked at: the first {number(len(seen.queues))}."
            hint = "Whether the others need somebody is not told here; look at them by name."
            found.append(Concern("warn", "Many queues", text, hint, "/queues", "Queues"))
        if seen.unsynced is not None:
            found.append(
                Concern(
                    "warn",
                    "The job store",
                    "acknowledges jobs before they are on disk.",
                    one_line(seen.unsynced),
                    "/queues",
                    "Queues",
                )
            )
    return sorted(found, key=lambda each: _ORDER.index(each.level))


class TakenQueues:
    """The queues that live workers take jobs from. Computed once instead of for each queue."""

    def __init__(self, workers: Iterable[Mapping[str, Any]]) -> None:
        named = [each["queues"] for each in workers if each["state"] != "silent"]
        self._are_all = None in named
        self._names = {name for names in named if names is not None for name in names}

    def __contains__(self, queue: str) -> bool:
        """Whether a live worker takes jobs from the queue."""
        return self._are_all or queue in self._names


def queue_chip(queue: Mapping[str, Any], taken: TakenQueues) -> Chip:
    """The state of a queue, in a word or two."""
    if queue["paused"]:
        return Chip("wait", "paused")
    if queue["oldest_due"] is not None:
        if lacking := _lacking(queue):
            return Chip("bad", lacking[0])
        if queue["name"] not in taken:
            return Chip("bad", "no worker")
        if queue["oldest_due"] > BEHIND:
            return Chip("warn", "behind")
    if queue["counts"]["active"]:
        return Chip("run", "running")
    return Chip("ok", "ready" if queue["counts"]["pending"] else "idle")


def _lacking(queue: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a queue's due jobs need and no worker has: in two words, and as a sentence."""
    if queue["missing_executors"]:
        names = first_names(queue["missing_executors"])
        return "no executor", f"has nobody to run it: no worker has the executor {names}."
    if queue["missing_handlers"]:
        names = first_names(queue["missing_handlers"])
        return "no handler", f"has jobs that no worker knows: none has the handler {names}."
    if queue["missing_version"]:
        version = queue["missing_version"]
        return "no such version", f"is pinned to version {version}, which no worker runs."
    return None


def _of_queues(seen: JobsSeen) -> Iterator[Concern]:
    taken = TakenQueues(seen.workers)
    for queue in seen.queues:
        name, waited = queue["name"], queue["oldest_due"]
        link = f"/jobs?queue={quote_plus(name)}&status=pending"
        unreadable = queue["counts"].get("unreadable")
        if unreadable:
            text = f"has {counted(unreadable, 'row')} that cannot be read and were set aside."
            hint, command = "All other jobs go on.", "ergon jobs unreadable"
            yield Concern("bad", f"Queue {name}", text, hint, "/queues", "Queues", command)
        if waited is None:
            continue
        waiting = _waiting(queue)
        if queue["paused"]:
            text = f"is paused, and {waiting} in it."
            hint, command = "They run when it is resumed.", f"ergon queues resume {quote(name)}"
            yield Concern("warn", f"Queue {name}", text, hint, link, "Jobs", command)
        elif lacking := _lacking(queue):
            hint = f"{waiting}. None is lost: they run as soon as such a worker is there."
            yield Concern("bad", f"Queue {name}", lacking[1], hint, link, "Jobs")
        elif name not in taken:
            text = "has nobody to run it: no worker that is alive takes its jobs."
            hint = f"{waiting}. None is lost: they run as soon as a worker is started."
            yield Concern("bad", f"Queue {name}", text, hint, link, "Jobs", "ergon worker")
        elif waited > BEHIND:
            text = f"is behind: the oldest job that is due has waited for {span(waited)}."
            hint = f"{waiting}. More workers, or more slots, catch up faster."
            yield Concern("warn", f"Queue {name}", text, hint, link, "Jobs")


def _waiting(queue: Mapping[str, Any]) -> str:
    count = queue["counts"]["pending"] + queue["counts"]["retrying"]
    are_more = "pending" in queue.get("more", ())
    is_one = count == 1 and not are_more
    return f"{number(count, are_more)} {'job waits' if is_one else 'jobs wait'}"


def _of_dead(seen: JobsSeen) -> Iterator[Concern]:
    count, are_more = seen.total("failed")
    if not count:
        return
    families = Counter(map(_family_of, seen.dead))
    text = f"{'has' if count == 1 else 'have'} given up and wait for a decision."
    if families:
        family, size = families.most_common(1)[0]
        latest = next(each for each in seen.dead if _family_of(each) == family)
        who = f"{size} of the latest {len(seen.dead)}"
        if size == count and not are_more:
            who = "It" if count == 1 else "All of them"
        text += f" {who} failed in {latest['handler']}: {_told(latest)}."
    hint = "Nothing happens to them by itself before their time of keeping ends."
    subject = f"{number(count, are_more)} {'job' if count == 1 else 'jobs'}"
    yield Concern("bad", subject, text, hint, "/dead-letters", "Review")


def _family_of(job: Mapping[str, Any]) -> tuple[str, str, str]:
    return error_family(job["handler"], *_error(job))


def _told(job: Mapping[str, Any]) -> str:
    code, message = _error(job)
    return failure_text(code, one_line(message).strip()[:MAX_MESSAGE])


def _error(job: Mapping[str, Any]) -> tuple[str, str]:
    failure = job["last_error"] or {}
    return str(failure.get("code", "")), str(failure.get("message", ""))


def _of_workers(workers: Iterable[Mapping[str, Any]]) -> Iterator[Concern]:
    silent = [each["id"] for each in workers if each["state"] == "silent"]
    if not silent:
        return
    names = first_names(silent)
    text = f"{'has' if len(silent) == 1 else 'have'} told nothing for a minute or more."
    hint = "What they held is taken over by other workers when the leases end."
    yield Concern(
        "warn", f"{counted(len(silent), 'worker')} ({names})", text, hint, "/", "Overview"
    )


def shown_of(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries that a page shows: the first ones of each kind, so that no kind hides the others.

    Where no worker runs, for example, every queue has an entry.
    """
    counts: Counter[str] = Counter()
    found = []
    for each in entries:
        kind = str(each["subject"]).partition(" ")[0]
        counts[kind] += 1
        if counts[kind] <= MOST_OF_KIND:
            found.append(each)
    return found
