"""Looking at a bucket: does it let us in, and does it do what the store counts on?"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator

from ergon_framework.boundary.objects.s3_bucket import BucketClient
from ergon_framework.storage.server import Observation, latency, skew

_SCARCE = 1 << 30


def observe(url: str) -> Iterator[Observation]:
    """One observation after the other; raises what opening raises. What it writes, it deletes."""
    client = BucketClient(url)
    client.check(is_opening=True)
    probe = f"probe-{secrets.token_hex(8)}"
    try:
        asked_at = time.time()
        client.put_new(probe, b"1")
        answered_at = time.time()
        yield Observation("access", f"{client.bucket.place} can be listed, written and deleted")
        yield conditions(is_kept=not client.put_new(probe, b"2"))
        yield room(shutil.disk_usage(tempfile.gettempdir()).free)
        yield latency(lambda: client.size(probe))
        # Buckets tell whole seconds, so half of one is the best guess.
        yield skew(client.put_at(probe).timestamp() + 0.5, asked_at - 0.5, answered_at + 0.5)
    finally:
        client.delete(probe)


def conditions(*, is_kept: bool) -> Observation:
    """Whether a put that must find nothing is refused where something is."""
    if is_kept:
        return Observation("conditional put", "holds: what is there is not put over")
    return Observation(
        "conditional put",
        "is ignored: nodes that put the same bytes at once overwrite them with the same",
        "use a server that honours If-None-Match; nothing notices two zones in one place there",
    )


def room(free: int) -> Observation:
    """Whether uploads under way have room on this machine."""
    found = f"{free >> 20} MiB for uploads under way in {tempfile.gettempdir()}"
    remedy = "" if free >= _SCARCE else "let TMPDIR name a folder that holds the largest objects"
    return Observation("temporary files", found, remedy)
