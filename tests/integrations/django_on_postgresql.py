"""A program in the folder of the Django example, on PostgreSQL; the tests read what it prints.

``python django_on_postgresql.py NAME HOST PORT USER``: an empty database of a server.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
sys.path.insert(0, str(Path.cwd()))

import django
from django.conf import settings

name, host, port, user = sys.argv[1:]
settings.DATABASES["default"] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": name,
    "HOST": host,
    "PORT": port,
    "USER": user,
}
django.setup()

from django.core.management import call_command  # noqa: E402 - Django is ready now
from django.db import connections, transaction  # noqa: E402
from django.db.transaction import TransactionManagementError  # noqa: E402

from ergon_framework.app.inline_worker import drain  # noqa: E402
from ergon_framework.app.job_handlers import JobHandler  # noqa: E402
from ergon_framework.errors import ErgonError  # noqa: E402
from ergon_framework.integrations.django import app, in_transaction, on_commit  # noqa: E402
from ergon_framework.ports.jobstore import Search  # noqa: E402

jobs_of_shop: Any = import_module("shop.jobs")  # of the folder that this runs in
ship: JobHandler[[int], str] = jobs_of_shop.ship
Order = jobs_of_shop.Order
told: dict[str, Any] = {"store": app.setup.url}
known: set[str] = set()


def jobs() -> list[int]:
    """The orders that new jobs are about, the newest first."""
    found = [job for job in app.client.store.search(Search()) if job.id not in known]
    known.update(job.id for job in found)
    return [json.loads(job.args)[0] for job in found]


def fails() -> None:
    """What ends a transaction."""
    raise LookupError


def refusal(call: Any) -> str:
    """What it says when it is refused."""
    try:
        call()
    except (ErgonError, TransactionManagementError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def dies_after_the_commit(enqueuer: Any) -> int:
    """The code with which a process ends that dies between the commit and what follows it."""
    child = os.fork()
    if child == 0:
        connections.close_all()
        with transaction.atomic():
            order = Order.objects.create(name=enqueuer.__name__)
            transaction.on_commit(lambda: os._exit(9))
            enqueuer(ship).enqueue(order.pk)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


call_command("migrate", verbosity=0)
with transaction.atomic():
    Order.objects.create(name="rolled out")
    on_commit(ship).enqueue(2)
    in_transaction(ship).enqueue(1)
    told["before the commit"] = jobs()
told["after the commit"] = jobs()

with transaction.atomic():
    on_commit(ship).enqueue(3)
    in_transaction(ship).enqueue(3)
    transaction.set_rollback(True)
with transaction.atomic(), transaction.atomic():
    on_commit(ship).enqueue(3)
    in_transaction(ship).enqueue(3)
    transaction.set_rollback(True)
try:
    with transaction.atomic():
        Order.objects.create(name="lost")
        on_commit(ship).enqueue(4)
        in_transaction(ship).enqueue(4)
        fails()
except LookupError:
    told["after rollbacks"] = jobs()
with transaction.atomic():
    Order.objects.create(name="lost")
    ship.enqueue(5)
    transaction.set_rollback(True)
told["alone"] = jobs()
told["outside"] = refusal(lambda: in_transaction(ship).enqueue(6))
with transaction.atomic():
    transaction.set_rollback(True)  # as an error does that was caught without a savepoint
    told["broken"] = refusal(lambda: in_transaction(ship).enqueue(7))

Order.objects.all().delete()
app.close()
connections.close_all()
told["codes"] = [dies_after_the_commit(each) for each in (on_commit, in_transaction)]
told["orders"] = sorted(Order.objects.values_list("name", flat=True))
(kept,) = [job for job in app.client.store.search(Search()) if job.id not in known]
told["jobs of orders"] = [Order.objects.get(pk=json.loads(kept.args)[0]).name]
drain(app)
told["done"] = app.client.result(kept.id, 0)
sys.stdout.write(json.dumps(told))
