"""A process of its own that calls a provider on a shared store, as it is told line by line.

    python shared_child.py URL CAP

``at SECONDS`` sets its clock, ``call STEP`` calls once (``ok``, ``fail``) and says the reason,
``race N`` lets N threads call at once: each that gets in says ``inside`` and stays there until a
line ``go`` comes, each that does not says ``refused``.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the parts of the tests

from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.recorder import close_recorders
from ergon_framework.providers.store_urls import open_store
from tests.providers.scripted import ONCE, Scripted, call


def say(text: str) -> None:
    """One line, written at once."""
    os.write(1, f"{text}\n".encode())


class Child:
    """One provider, one clock, and the gate that probes wait at."""

    def __init__(self, url: str, cap: int) -> None:
        self.now = 0.0
        self.go_on = threading.Event()
        store = open_store(url, clock=lambda: self.now)
        breaker = CircuitBreaker(
            failure_threshold=2,
            open_cooldown_seconds=10,
            half_open_max_calls=cap,
            half_open_success_threshold=50,
            probe_lease_seconds=60,
            store_timeout_seconds=60,
        )
        self.provider = Scripted(store=store, retry_policy=ONCE, circuit_breaker=breaker)
        self.threads: list[threading.Thread] = []

    def obey(self, word: str, value: str = "") -> None:
        """Do what a line says."""
        if word == "at":
            self.now = float(value)
            say("ok")
        elif word == "call":
            if value == "fail":
                self.provider.steps.append(ProviderDependencyError("down"))
            say(str(call(self.provider).reason_code))
        elif word == "race":
            self.provider.steps.extend([self.inside] * int(value))
            self.threads = [threading.Thread(target=self.race) for _ in range(int(value))]
            for thread in self.threads:
                thread.start()
        elif word == "go":
            self.go_on.set()
            for thread in self.threads:
                thread.join()
            self.go_on.clear()
            self.provider.steps.clear()
            say("done")

    def inside(self, _: object) -> dict[str, Any]:
        """A probe that takes its time."""
        say("inside")
        self.go_on.wait()
        return {}

    def race(self) -> None:
        """One of many."""
        if call(self.provider).reason_code == "circuit_open":
            say("refused")


def main() -> None:
    """Read lines until there are no more."""
    child = Child(sys.argv[1], int(sys.argv[2]))
    say("ready")
    for line in sys.stdin:
        child.obey(*line.split())
    close_recorders()
    child.provider.store.close()


if __name__ == "__main__":
    main()
