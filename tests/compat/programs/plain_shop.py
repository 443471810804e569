"""Tasks declared without Celery, which cannot be imported here: only their import has changed.

``main()`` calls every case, runs the jobs, and prints how each ended as JSON; what the tasks did is
in the file ``journal``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.modules["celery"] = None  # type: ignore[assignment] # as if it were not installed

from ergon_framework import App  # noqa: E402
from ergon_framework.compat.celery import (  # noqa: E402
    Celery,
    Ignore,
    Reject,
    SoftTimeLimitExceeded,
    Task,
    from_celery,
    shared_task,
)


def note(*words: Any) -> None:
    """Write a line of the journal."""
    with Path("journal").open("a") as journal:
        journal.write(json.dumps(words, default=str) + "\n")


@shared_task
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@shared_task
def later(at: datetime, raw: bytes) -> list[Any]:
    """Values that JSON has no form for."""
    return [at + timedelta(days=1), raw + b"!"]


ergon = App(f"sqlite:///{Path.cwd() / 'jobs.db'}", name="shop")
app = Celery("shop", ergon=ergon)


@app.task(bind=True)
def about(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the request says."""
    request = self.request
    return {
        "name": [self.name, request.task],
        "id": request.id,
        "arguments": [list(request.args), request.kwargs],
        "direct": [request.called_directly, request.is_eager],
        "queue": request.delivery_info["routing_key"],
    }


@shared_task(bind=True)
def persistent(self: Any, times: int) -> int:
    """Succeed after some retries, more than the default allows."""
    note("persistent", self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=0, max_retries=5, exc=ConnectionError("not yet"))
    return int(self.request.retries)


@shared_task(bind=True, max_retries=1)
def hopeless(self: Any, has_error: bool) -> None:
    """Retry until no retry is left."""
    self.retry(countdown=0, exc=ConnectionError("never") if has_error else None)


@shared_task(bind=True)
def changing(self: Any, number: int) -> None:
    """Ask for a retry with other arguments, which no attempt of a job can have."""
    self.retry(args=(number + 1,), countdown=0)


@app.task(
    autoretry_for=(LookupError,),
    dont_autoretry_for=(IndexError,),
    retry_backoff=True,
    retry_backoff_max=0,
    max_retries=2,
)
def automatic(kind: str) -> None:
    """Errors that are retried, and one that is not."""
    note("automatic", kind)
    raise {"key": KeyError, "index": IndexError}[kind](kind)


@shared_task
def ignoring() -> None:
    """End without a result."""
    raise Ignore


@shared_task
def rejecting() -> None:
    """End by rejecting the message for good."""
    raise Reject("bad message")


@shared_task
def handing_back() -> str:
    """Give the message back once."""
    mark = Path("handed-back")
    if not mark.exists():
        mark.touch()
        raise Reject("not now", requeue=True)
    return "second time"


@shared_task(soft_time_limit=0.2)
def slow() -> str:
    """Notice the soft limit, and clean up."""
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "cleaned up"


@shared_task(time_limit=0.3)
def stuck() -> None:
    """Never end."""
    time.sleep(60)


@shared_task
def fragile() -> None:
    """Die with the process, and not be run again."""
    note("fragile")
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(acks_late=True, bind=True)
def sturdy(self: Any) -> bool:
    """Die with the process, and be run again."""
    note("sturdy")
    if self.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return bool(self.request.delivery_info["redelivered"])


class Watched(Task):
    """A base class with hooks, and a constructor of its own."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Note it."""
        note("hook", "before_start", args, kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Note it."""
        note("hook", "on_success", retval)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Note it."""
        note("hook", "on_retry", repr(exc))

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Note it."""
        note("hook", "after_return", status)


@shared_task(base=Watched, bind=True, name="named")
def watched(self: Any) -> str:
    """Be followed by all hooks."""
    if self.request.retries == 0:
        raise self.retry(countdown=0, exc=RuntimeError("ill"))
    return "well"


@shared_task
def outer() -> list[str]:
    """Call a task and not wait for it."""
    inner = add.delay(20, 22)
    try:
        inner.get(timeout=1)
    except RuntimeError as error:
        return [inner.id, str(error)]
    return []


CALLS: dict[str, Any] = {
    "add": lambda: add.delay(2, 3),
    "later": lambda: later.delay(datetime(2026, 1, 1, tzinfo=UTC), b"\xff"),
    "about": lambda: about.apply_async((1,), {"x": 2}, task_id="about-1", queue="chosen"),
    "by name": lambda: app.send_task("plain_shop.add", (1, 1)),
    "persistent": lambda: persistent.delay(4),
    "hopeless": lambda: hopeless.delay(True),
    "exhausted": lambda: hopeless.delay(False),
    "changing": lambda: changing.delay(1),
    "autoretry": lambda: automatic.delay("key"),
    "excepted": lambda: automatic.delay("index"),
    "ignoring": ignoring.delay,
    "rejecting": rejecting.delay,
    "handing back": handing_back.delay,
    "slow": slow.delay,
    "stuck": stuck.delay,
    "fragile": fragile.delay,
    "sturdy": sturdy.delay,
    "watched": watched.delay,
    "outer": outer.delay,
}


def main() -> None:
    """Call, run, tell."""
    results = {name: call() for name, call in CALLS.items()}
    ergon.run(burst=True, processes=1)
    while any(not each.ready() for each in results.values()):
        time.sleep(1.0)  # the delay of one that was handed back
        ergon.run(burst=True, processes=1)
    told: dict[str, Any] = {}
    for name, each in results.items():
        value = each.get(propagate=False)
        code = getattr(value, "details", {}).get("code")
        told[name] = [each.state, code or value]
    inner = app.AsyncResult(told["outer"][1][0])
    told["inner"] = [inner.state, inner.get()]
    try:
        from_celery(app, ergon)
    except ImportError as error:
        told["missing"] = [type(error).__name__, str(error)]
    print(json.dumps(told, default=str))
