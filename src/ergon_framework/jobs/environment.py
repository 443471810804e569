"""What of a worker's environment its executors get: everything but what is ours to keep.

Handlers rely on their environment, so it is handed down. The variables of Ergon itself, and those
that the settings read for other parts, may hold the server's token or the store's password: a
handler, and what it starts, has no use for them unless somebody says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ergon_framework.jobs.settings import ExecutorSettings

PREFIX = "ERGON_"
WITHHELD = "ERGON_WITHHELD"
"""Tells an executor which variables it did not get, so that settings that name them can be read."""
HARMLESS = frozenset(
    {
        "ERGON_CONFIG",
        "ERGON_JOURNAL",
        "ERGON_LOG_FORMAT",
        "ERGON_LOG_LEVEL",
        "ERGON_OTLP",
        "ERGON_WORKER_ID",
    }
)
"""Variables of ours that executors need, and that hold no secret."""
BASICS = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", *sorted(HARMLESS))
"""What an executor gets with any ``pass_env``: programs do not start without it, or start oddly."""


def executor_environment(
    environ: Mapping[str, str], settings: ExecutorSettings, read_elsewhere: Iterable[str] = ()
) -> dict[str, str]:
    """The environment of an executor; ``read_elsewhere``: what settings of other parts refer to."""
    ours = {name for name in environ if name.upper().startswith(PREFIX)} - HARMLESS
    ours |= {*read_elsewhere} & environ.keys()
    kept_back = {name for name in ours if not _is_among(name, settings.pass_secrets)}
    wanted = (*BASICS, *settings.pass_env, *settings.pass_secrets)
    found = {
        name: value
        for name, value in environ.items()
        if name not in kept_back and _is_among(name, wanted)
    }
    if kept_back:
        found[WITHHELD] = ",".join(sorted(kept_back))
    return found | dict(settings.env)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
