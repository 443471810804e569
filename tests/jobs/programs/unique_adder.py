"""A process that adds jobs of keys which others want as well, and says what it was answered."""

from __future__ import annotations

import sys

from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import NewJob

RULES = {
    "waiting": UniqueRule(),
    "period": UniqueRule(("pending", "active", "completed"), 3600.0),
}


def main(url: str, rule: str, name: str, keys: str, word: str) -> None:
    """Add a job of each key."""
    store = open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(keys)):
        job = NewJob(
            id=f"{name}-{n}",
            handler="work",
            unique_key=f"k{n}",
            unique=RULES[rule],
            on_duplicate=OnDuplicate(word),
            delay=60.0,
        )
        [found] = store.add([job])
        print(n, found.id, int(found.is_new), flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
