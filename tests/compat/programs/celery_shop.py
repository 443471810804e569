"""A shop on Django and Celery, whose tasks a Celery worker and Ergon's executors both run.

``main()`` calls every case through Celery, whose worker (``celery -A celery_shop worker``) must be
running, then through Ergon, and runs the jobs. It prints how each ended as JSON; what the tasks did
is in the files ``journal-celery`` and ``journal-ergon``, by ``SHOP_SIDE`` of the process that runs
them. ``SHOP_BROKER`` is Celery's broker. All files are in the working directory.
"""

# mypy: disable-error-code="misc,untyped-decorator"

from __future__ import annotations

import json
import os
import time
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from celery import Celery, Task, group, shared_task, signals
from celery.exceptions import Ignore, Reject
from celery.result import AsyncResult
from django.conf import settings

FOLDER = Path.cwd()
HAS_MAIL = find_spec("post_office") is not None
BROKER = os.environ.get("SHOP_BROKER", "memory://")

if not settings.configured:
    settings.configure(
        SECRET_KEY="not a secret",  # noqa: S106 - of a test
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "django.db"}
        },
        INSTALLED_APPS=["django.contrib.contenttypes", *(["post_office"] if HAS_MAIL else [])],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        EMAIL_BACKEND="post_office.EmailBackend",
        POST_OFFICE={
            "BACKENDS": {"default": "django.core.mail.backends.filebased.EmailBackend"},
            "CELERY_ENABLED": True,
            "LOCK_FILE_NAME": str(FOLDER / "post_office.lock"),
        },
        EMAIL_FILE_PATH=str(FOLDER / f"mails-{os.environ.get('SHOP_SIDE')}"),
        MIGRATION_MODULES={
            "contenttypes": None,
            "post_office": None,
        },  # tables at once: it is faster
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=True,
    )
    django.setup()

celery_app = Celery("shop", broker=BROKER, backend=os.environ.get("SHOP_BACKEND", "rpc://"))
celery_app.conf.update(
    task_routes={"celery_shop.*picture*": {"queue": "pictures", "routing_key": "any"}},
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    include=["post_office.tasks"] if HAS_MAIL else [],
    timezone="America/New_York",  # in which an instant without a zone would be hours away
)


def note(*words: Any) -> None:
    """Write a line of the journal: what a task did, or a hook or signal heard."""
    with (FOLDER / f"journal-{os.environ.get('SHOP_SIDE')}").open("a") as journal:
        journal.write(json.dumps(words, default=str) + "\n")


@shared_task
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@shared_task
def later(at: datetime, by: Decimal, key: uuid.UUID, raw: bytes) -> list[Any]:
    """Values that JSON has no form for."""
    return [at + timedelta(days=1), by * 2, key, raw + b"!"]


@celery_app.task(bind=True)
def about(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the request says."""
    request = self.request
    return {
        "name": [self.name, request.task],
        "id": request.id,
        "arguments": [list(request.args), request.kwargs],
        "direct": [request.called_directly, request.is_eager],
        "retries": request.retries,
        "root": request.root_id == request.id,
        "redelivered": bool(request.delivery_info["redelivered"]),
    }


@celery_app.task(bind=True)
def resize_picture(self: Any) -> str:
    """Where a message came from: a queue that task_routes names."""
    queue: str = self.request.delivery_info["routing_key"]
    return "default" if queue == "celery" else "pictures" if queue == "any" else queue


@shared_task(bind=True)
def persistent(self: Any, times: int) -> int:
    """Succeed after some retries, more than the decorator's default allows."""
    note("persistent", self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=0, max_retries=5, exc=ConnectionError("not yet"))
    return int(self.request.retries)


@shared_task(bind=True, max_retries=1)
def hopeless(self: Any, has_error: bool) -> None:
    """Retry until no retry is left."""
    note("hopeless", self.request.retries)
    error = ConnectionError("never") if has_error else None
    self.retry(countdown=0, exc=error)


@shared_task(bind=True)
def quiet(self: Any) -> str:
    """Ask for a retry, and go on."""
    note("quiet", self.request.retries)
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
    return "done"


@shared_task(bind=True)
def leaving(self: Any, ends_with: str) -> None:
    """Ask for a retry, and end otherwise."""
    note("leaving", ends_with, self.request.retries)
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
        raise {"ignore": Ignore, "error": ValueError}[ends_with]


@shared_task(bind=True)
def moving(self: Any) -> None:
    """Ask for a retry in another queue."""
    self.retry(countdown=0, queue="chosen")


@shared_task(bind=True)
def replaced(self: Any) -> Any:
    """Be replaced by a canvas of tasks that are with Celery."""
    return self.replace(group(unrouted.s(), unrouted.s()))


@celery_app.task(name="unrouted")
def unrouted() -> None:
    """Stay with Celery."""
    note("unrouted")


@celery_app.task(
    autoretry_for=(LookupError,),
    dont_autoretry_for=(IndexError,),
    retry_kwargs={"max_retries": 2, "countdown": 0},
)
def automatic(kind: str) -> None:
    """Errors that are retried, and one that is not."""
    note("automatic", kind)
    raise {"key": KeyError, "index": IndexError, "value": ValueError}[kind](kind)


@shared_task
def ignoring() -> None:
    """End without a result."""
    note("ignoring")
    raise Ignore


@shared_task(acks_late=True)
def rejecting() -> None:
    """End by rejecting the message for good."""
    note("rejecting")
    raise Reject("bad message", requeue=False)


@shared_task(ignore_result=True)
def forgetful() -> int:
    """A result that nobody wants."""
    note("forgetful")
    return 7


@shared_task(soft_time_limit=1, time_limit=20)
def slow() -> str:
    """Notice the soft limit, and clean up."""
    try:
        while True:
            time.sleep(0.01)
    except Exception as error:
        return type(error).__name__


class Watched(Task):
    """A base class with all hooks."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note("before_start", args, kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note("on_success", retval, args, kwargs)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note("on_retry", repr(exc), type(einfo).__name__)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note("on_failure", repr(exc), type(einfo).__name__)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        note("after_return", status)


@shared_task(base=Watched, bind=True, max_retries=1, name="shop.watched")
def watched(self: Any, is_well: bool) -> str:
    """Be followed by all hooks and signals."""
    note("watched", self.request.retries)
    if not is_well:
        raise self.retry(countdown=0, exc=RuntimeError("ill"))
    return "well"


for _name in ("prerun", "postrun", "success", "retry", "failure"):

    def _hear(sender: Any, _name: str = _name, **told: Any) -> None:
        if sender.name == "shop.watched":
            note(f"task_{_name}", told.get("state"))

    getattr(signals, f"task_{_name}").connect(_hear, weak=False)


from ergon_framework import App  # noqa: E402 - the shop is as it was; this is what was added
from ergon_framework.compat.celery import from_celery  # noqa: E402

ergon = App(f"sqlite:///{FOLDER / 'jobs.db'}", name="shop")
bridge = from_celery(celery_app, ergon, store_results=True)  # calls go to Celery as before

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "add": (add, (2, 3), {}, {}),
    "later": (
        later,
        (datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.10"), uuid.UUID(int=7), b"\xff"),
        {},
        {},
    ),
    "about": (about, (1,), {"x": [2]}, {"task_id": "about-1"}),
    "naive": (add, (1, 1), {}, {"eta": datetime.now(UTC).replace(tzinfo=None)}),
    "countdown and eta": (add, (1, 2), {}, {"countdown": 0.001, "eta": "2999-01-01"}),
    "routed": (resize_picture, (), {}, {}),
    "chosen": (resize_picture, (), {}, {"queue": "chosen"}),
    "persistent": (persistent, (4,), {}, {}),
    "hopeless": (hopeless, (True,), {}, {}),
    "exhausted": (hopeless, (False,), {}, {}),
    "autoretry": (automatic, ("key",), {}, {}),
    "excepted": (automatic, ("index",), {}, {}),
    "unexpected": (automatic, ("value",), {}, {}),
    "slow": (slow, (), {}, {}),
    "well": (watched, (True,), {}, {}),
    "ill": (watched, (False,), {}, {}),
}
"""Calls whose results are compared."""
UNANSWERED = {
    "quiet": (quiet,),
    "ignoring": (ignoring,),
    "rejecting": (rejecting,),
    "forgetful": (forgetful,),
    "leaving": (leaving, "ignore"),
    "failing": (leaving, "error"),
}
"""Tasks without a result in Celery: what they did is in the journal."""


def outcome(result: Any) -> list[Any]:
    """How a call ended: its state, and its value or the name of its error."""
    try:
        value = result.get(timeout=60)
    except Exception as error:
        code = getattr(error, "details", {}).get("code")
        return ["FAILURE", code or type(error).__name__]
    return [result.state, json.loads(json.dumps(value, default=str))]


def send_mail(side: str) -> None:
    """Queue a mail: post_office calls its task when the transaction is committed."""
    from django.db import transaction
    from post_office import mail

    with transaction.atomic():
        mail.send("to@example.org", "from@example.org", subject=f"by {side}", message="hello")


def send(case: tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]) -> Any:
    """Call the task of a case."""
    task, args, kwargs, options = case
    return task.apply_async(args, kwargs, **options)


def main() -> None:
    """Call every case on both sides; Celery's one by one, so that its journal has an order."""
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    if HAS_MAIL:
        send_mail("celery")
    for task, *args in UNANSWERED.values():
        task.delay(*args)
    of_celery = {name: outcome(send(case)) for name, case in CASES.items()}
    bridge.detach()
    from_celery(celery_app, ergon, route={"unrouted": "celery", "*": "ergon"})
    os.environ["SHOP_SIDE"] = "ergon"
    if HAS_MAIL:
        send_mail("ergon")
    results = {name: send(case) for name, case in CASES.items()}
    for task, *args in UNANSWERED.values():
        task.delay(*args)
    refused = {each.name: each.delay() for each in (moving, replaced)}
    ergon.run(burst=True, processes=1)
    of_ergon = {name: outcome(each) for name, each in results.items()}
    kept = AsyncResult(results["well"].id, app=celery_app).get(timeout=10)
    found = celery_app.AsyncResult(results["later"].id)
    told = {
        "celery": of_celery,
        "ergon": of_ergon,
        "kept": kept,
        "found": [found.state, found.get(timeout=10)],
        "refused": {name: str(each.get(propagate=False)) for name, each in refused.items()},
    }
    print(json.dumps(told, default=str))
