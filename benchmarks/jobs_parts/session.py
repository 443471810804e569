"""Where contestants with clients and servers of their own race, and records of times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from comparison import Contestant, Record, Turn, race

from jobs_parts.queue_systems import ClientProcess, QueueSystem
from jobs_parts.servers import Servers


class Session:
    """Where a run takes place: a folder, servers, and the clients that were started so far."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.servers = Servers(folder)
        self._clients: dict[str, ClientProcess] = {}

    def contestant(
        self,
        system: QueueSystem,
        case: str,
        turn: Callable[[ClientProcess], Turn],
        label: str | None = None,
    ) -> Contestant:
        """A contestant in a case; its client and its server start with its first turn."""
        return Contestant(label or system.name, lambda: turn(self.queue_client(system, case)))

    def queue_client(self, system: QueueSystem, case: str) -> ClientProcess:
        """The contestant with its client; raises ``ContestantError`` when there is none."""
        name = f"{system.key}-{case}" if system.has_cases else system.key
        if name not in self._clients:
            url = self.servers.url(system.server) if system.server else ""
            self._clients[name] = ClientProcess(system, case, url, self.folder / name)
        return self._clients[name]

    def race(self, contestants: Sequence[Contestant], rounds: int | None = None) -> None:
        """Every contestant has a turn in each round."""
        race(contestants, rounds or self.rounds)

    def close(self) -> None:
        """End all clients, then the servers."""
        for queue_client in self._clients.values():
            queue_client.close()
        self.servers.stop()


def time_record(case: str, label: str, samples: Sequence[float], ours: Sequence[float]) -> Record:
    """Milliseconds; the ratio is our median divided by theirs, so that less than 1 is good."""
    median = statistics.median(samples)
    record: Record = {
        "case": case,
        "who": label,
        "p50_ms": round(median, 4),
        "p99_ms": round(sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))], 4),
        "spread_ms": [round(min(samples), 4), round(max(samples), 4)],
        "samples": len(samples),
    }
    if ours and samples is not ours:
        record["ratio"] = round(statistics.median(ours) / median, 3)
    return record


def latency_record(
    case: str, label: str, rounds: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]
) -> Record:
    """The same of several rounds: medians of them, with the least and the most of the rounds."""
    made = time_record(case, label, [each for one in rounds for each in one], ())
    medians = [statistics.median(one) for one in rounds]
    made |= {
        "p50_ms": round(statistics.median(medians), 4),
        "p50_ms_spread": [round(min(medians), 4), round(max(medians), 4)],
        "rounds": len(rounds),
    }
    if ours and rounds != ours:
        pairs = zip(ours, rounds, strict=True)
        quotients = [statistics.median(our) / statistics.median(their) for our, their in pairs]
        made |= {
            "ratio": round(statistics.median(quotients), 3),
            "ratio_spread": [round(min(quotients), 3), round(max(quotients), 3)],
        }
    return made
