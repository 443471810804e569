"""The kill campaign: processes at work on one store die at random moments and at failpoints.

So does the server, where there is one. Everything the dice decide follows from the seed; when
exactly a signal strikes is up to the machine, and different every time. In the end the store and
the books of the processes are compared, not anything kept on the way.
"""

from __future__ import annotations

import math
import random
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ergon_framework.app.console import ExitCode
from ergon_framework.storage.failpoints import NAMES
from tests.campaign.actors import Actor
from tests.campaign.event_file import Book
from tests.campaign.outage_retry import TURNED_AWAY, pause
from tests.differential.engines import ServerEngine, running
from tests.differential.places import Place

PATIENCE = 120.0
ARMED = 0.6
"""The share of processes that will kill themselves at a failpoint."""
SERVER = 0.08
"""The share of strikes that hit the server."""
FROZEN = 0.15
"""The share of the others that stop a process for a while instead of killing it."""
RARE = ("sweep", "rescue", "renew", "desk")
"""Words in the names of places that a process does not pass many times a second."""


class CampaignError(AssertionError):
    """A process ended in a way that nobody asked for, or the end was never reached."""


class Campaign(ABC):
    """One store, the processes at work on it, and who kills them."""

    what: str
    ranks: Sequence[str]
    """The programs that are at work, one process for each entry."""
    patience = PATIENCE
    """Seconds that what is left has to end, when nobody is killed any more."""

    def __init__(self, engine_name: str, folder: Path, seed: int) -> None:
        self.engine_name = engine_name
        self.dice = random.Random(seed)  # noqa: S311 - to be repeatable
        self.seed = seed
        self.errors = folder / "errors"
        self.book = Book(folder / "book")
        self.killed: Counter[str] = Counter()
        self.passed: set[tuple[str, str]] = set()
        """Who died at which failpoint."""
        self.turned_away = self.frozen = 0
        self._thaws: dict[Actor, float] = {}
        self.actors: list[Actor] = []
        self._points: dict[str, list[str]] = {}

    # ---- what a campaign is about ---------------------------------------------------------------

    @abstractmethod
    def open(self, place: Place) -> None:
        """Look at the store while the others work."""

    @abstractmethod
    def points(self, program: str) -> list[str]:
        """The failpoints that processes of a program pass."""

    def known(self, beginnings: tuple[str, ...]) -> list[str]:
        """The failpoints with names that begin so, and those of the file, if there is one."""
        files = ("storage.",) if self.engine_name == "sqlite" else ()
        return sorted(name for name in NAMES if name.startswith((*beginnings, *files)))

    @abstractmethod
    def feed(self) -> None:
        """See that there is enough to do."""

    def top_up(self) -> None:  # noqa: B027 - most campaigns have nothing to add
        """Let the rest be added, after the last kill."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether nothing is left to do."""

    @abstractmethod
    def judged(self) -> dict[str, Any]:
        """What the store and the books say in the end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store."""

    # ---- the course of it -----------------------------------------------------------------------

    def run(self, kills: int, seconds: float) -> dict[str, Any]:
        """So many kills, unless the time is up; then let the work end, and judge."""
        began = time.monotonic()
        with running(self.engine_name, is_durable=True) as engine:
            self.place = engine.place()
            self.open(self.place)
            try:
                self._man()
                server = engine if isinstance(engine, ServerEngine) else None
                while self.kills < kills and time.monotonic() - began < seconds:
                    self._round(server)
                self._finish()
                verdict = self.judged()
            finally:
                for actor in self.actors:
                    actor.kill()
                self.close()
                self.book.close()
        told = {"store": f"{self.what}-{self.engine_name}", "seed": self.seed, "kills": self.kills}
        spent = {"seconds": round(time.monotonic() - began, 1)}
        return told | verdict | self._course() | spent

    def _course(self) -> dict[str, Any]:
        """What was done to whom."""
        return {"killed": dict(self.killed), "frozen": self.frozen, "missed": self._missed()}

    def _missed(self) -> list[str]:
        """Failpoints at which nobody died."""
        every = {(each, point) for each in set(self.ranks) for point in self.points(each)}
        return sorted(" ".join(each) for each in every - self.passed)

    @property
    def kills(self) -> int:
        """How often somebody was killed."""
        return sum(self.killed.values())

    def _round(self, server: ServerEngine | None) -> None:
        self.look_after()
        self.feed()
        pause(self.dice.uniform(0.0, 0.15))
        if not any(actor.is_due for actor in self.actors):
            return  # all of them are still about to begin
        if server is not None and self.dice.random() < SERVER:
            server.server.kill()
            pause(self.dice.uniform(0.0, 0.3))
            server.server.start()
            self.killed["server"] += 1
        elif self.dice.random() < FROZEN:
            self._freeze()
        else:
            self.dice.choice([*self.strikes(), self._strike])()

    def look_after(self) -> None:
        """Wake those whose time has come, and replace those who died."""
        self._thaw(time.monotonic())
        self._bury()

    def strikes(self) -> Sequence[Callable[[], None]]:
        """Other ways to hurt than to kill one of the processes."""
        return ()

    def _strike(self) -> None:
        """Kill one of those at work, or some at once."""
        due = [actor for actor in self.actors if actor.is_due and actor.code is None]
        victims = self.dice.sample(due, min(len(due), self.dice.choice((1, 1, 2, 3))))
        for actor in victims:
            self.struck(actor)
            self.killed[actor.program] += 1
            actor.kill()
        for actor in victims:
            self._replace(actor)

    def _freeze(self) -> None:
        """Stop one of them for longer than it may hold anything, so that it comes back late."""
        actor = self.dice.choice([actor for actor in self.actors if actor.is_due])
        if actor not in self._thaws:
            actor.signal(signal.SIGSTOP)
            self._thaws[actor] = time.monotonic() + self.dice.uniform(1.2, 2.5)
            self.frozen += 1

    def _thaw(self, now: float) -> None:
        for actor in [actor for actor, at in self._thaws.items() if at <= now]:
            actor.signal(signal.SIGCONT)
            del self._thaws[actor]

    @abstractmethod
    def struck(self, actor: Actor) -> None:
        """It is going to be killed: see that this happens while it does something."""

    def _man(self) -> None:
        for program in self.ranks:
            self.actors.append(self._start(program))

    def _start(self, program: str) -> Actor:
        arm = self._armed(program) if self.dice.random() < ARMED else ""
        return self.start(program, arm)

    def start(self, program: str, arm: str) -> Actor:
        """A process of that program."""
        arguments = (self.place.url, self.place.zone, str(self.book.path), *self.more(program))
        return Actor(program, arguments, self.errors, arm)

    def more(self, program: str) -> Sequence[str]:
        """Arguments of a program beside the place and the book."""
        return ()

    def _armed(self, program: str) -> str:
        """Each of the failpoints has its turn."""
        left = self._points.setdefault(program, [])
        if not left:
            left += self.points(program)
            self.dice.shuffle(left)
        if not left:
            return ""
        point = left.pop()
        is_rare = any(word in point for word in RARE)
        return f"{point}=kill@{1 if is_rare else self.dice.choice((1, 1, 2, 3, 6))}"

    def _replace(self, actor: Actor) -> None:
        self.actors[self.actors.index(actor)] = self._start(actor.program)

    def _bury(self) -> None:
        """Replace those who died at a failpoint, or found the store away when they started."""
        for actor in [each for each in self.actors if each.code is not None]:
            never_began = not actor.is_at_work
            actor.buried()
            if actor.code == -signal.SIGKILL and actor.arm:
                self.killed["failpoint"] += 1
                self.passed.add((actor.program, actor.arm.partition("=")[0]))
            elif actor.code == TURNED_AWAY or (never_began and actor.code == ExitCode.FAILED):
                self._turn_away()
            else:
                raise CampaignError(
                    f"{self.what}-{self.engine_name}, seed {self.seed}: a {actor.program} ended "
                    f"with {actor.code} ({actor.arm}): {self._last_words()}"
                )
            self._replace(actor)

    def _turn_away(self) -> None:
        self.turned_away += 1
        if self.turned_away > self.killed["server"] * len(self.ranks):
            raise CampaignError(f"nobody can start: {self._last_words()}")

    def _finish(self) -> None:
        """Nobody is killed any more; those who are armed are replaced."""
        self.top_up()
        self._thaw(math.inf)
        for actor in self.actors:
            if actor.arm:
                actor.kill()
        self.actors = [
            self.start(actor.program, "") if actor.arm else actor for actor in self.actors
        ]
        until = time.monotonic() + self.patience
        while not self.is_done():
            if time.monotonic() > until:
                raise CampaignError(
                    f"{self.what}-{self.engine_name}, seed {self.seed}: not done after "
                    f"{self.patience} s: {self.judged()} {self._last_words()}"
                )
            self._bury()
            pause(0.05)
        while self.actors:
            self.actors.pop().leave()

    def _last_words(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace")[-1500:]
