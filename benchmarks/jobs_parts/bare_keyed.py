"""The same with the two keys that a queue cannot do without: jobs by their id, and the next one."""

from __future__ import annotations

from jobs_parts import bare_sqlite


class Peer(bare_sqlite.Peer):
    """Three pages change with each row instead of one."""

    keys = (
        "CREATE UNIQUE INDEX by_id ON jobs (id)",
        "CREATE INDEX due ON jobs (executor, queue, priority DESC, run_at) WHERE stage = 2",
    )
