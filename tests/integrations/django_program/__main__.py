"""A program in the folder of the Django example: what it prints is read by the tests.

``python django_program DATABASE``: it makes that file, and a process of its own dies on the way.
"""

import json
import os
import sqlite3
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
sys.path.insert(0, str(Path.cwd()))

import django
from django.conf import settings

settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()

from django.core.management import call_command  # noqa: E402 - Django is ready now
from django.db import connection, connections, transaction  # noqa: E402
from django.db.transaction import TransactionManagementError  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from ergon_framework.app.inline_worker import drain  # noqa: E402
from ergon_framework.app.job_handlers import JobHandler  # noqa: E402
from ergon_framework.errors import ErgonError  # noqa: E402
from ergon_framework.integrations.django import app, in_transaction, on_commit  # noqa: E402
from ergon_framework.integrations.django.apps import check_settings  # noqa: E402
from ergon_framework.integrations.django.project import (  # noqa: E402
    make_app,
    project_app,
    settings_of_project,
    url_of,
)
from ergon_framework.jobs.store_urls import check_url  # noqa: E402
from ergon_framework.ports.jobstore import Search  # noqa: E402

jobs_of_shop: Any = import_module("shop.jobs")  # of the folder that this runs in
ship: JobHandler[[int], str] = jobs_of_shop.ship
thank = jobs_of_shop.thank
Order = jobs_of_shop.Order
told: dict[str, Any] = {}


def jobs() -> list[str]:
    """The arguments of all jobs, the newest first."""
    return [f"{job.handler} {job.args.decode()}" for job in app.client.store.search(Search())]


def refusal(call: Any) -> str:
    """What it says when it is refused."""
    try:
        call()
    except (ErgonError, TransactionManagementError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def dies_after_the_commit(enqueuer: Any, name: str) -> int:
    """The code with which a process ends that dies between the commit and what follows it."""
    child = os.fork()
    if child == 0:
        connections.close_all()
        with transaction.atomic():
            order = Order.objects.create(name=name)
            transaction.on_commit(lambda: os._exit(9))
            enqueuer(ship).enqueue(order.pk)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


call_command("migrate", verbosity=0)
told["wrong arguments"] = refusal(lambda: on_commit(ship).enqueue("five"))  # type: ignore[arg-type]
told["no handler"] = [refusal(lambda: on_commit(print)), refusal(lambda: in_transaction(None))]  # type: ignore[arg-type]
told["outside"] = refusal(lambda: in_transaction(ship).enqueue(5))
with transaction.atomic():
    on_commit(ship).enqueue(1)
    told["before the commit"] = jobs()
told["after the commit"] = jobs()
with transaction.atomic():
    on_commit(ship).enqueue(2)
    in_transaction(ship).enqueue(3)
    transaction.set_rollback(True)
with transaction.atomic():
    with transaction.atomic():
        on_commit(ship.options(queue="late")).enqueue(4)
        in_transaction(ship).enqueue(4)
        transaction.set_rollback(True)
    on_commit(ship.options(queue="late")).enqueue(6)
told["after rollbacks"] = jobs()
with transaction.atomic():
    transaction.set_rollback(True)  # as an error does that was caught without a savepoint
    told["in a broken transaction"] = refusal(lambda: in_transaction(ship).enqueue(8))
app.client.store.purge(list(app.client.store.search(Search())))
on_commit(ship).enqueue(7)
told["outside of a transaction"] = jobs()

# A process that dies: the order of on_commit has no job, that of in_transaction has one.
app.close()
connections.close_all()
told["codes"] = [dies_after_the_commit(each, each.__name__) for each in (on_commit, in_transaction)]
told["orders"] = sorted(Order.objects.values_list("name", flat=True))
(kept,) = Order.objects.filter(name="in_transaction")
told["kept"] = jobs()[0] == f"django#ship [{kept.pk}]"
told["jobs"] = len(jobs())

# Around each job, connections are closed that are too old; of a transaction none is.
thanks = thank.enqueue(kept.pk)
connection.ensure_connection()
connection.close_at = 0.0
drain(app)
told["is closed"] = connection.connection is None
told["thanks"] = thanks.result(0)
told["state"] = Order.objects.get(name="in_transaction").state


# A job that would wait for the transaction that it is enqueued in.
with transaction.atomic():  # it has read and not written: nobody has to wait
    Order.objects.count()
    ship.options(id="after a read").enqueue(20)
with transaction.atomic():
    Order.objects.create(name="written")
    told["waits for itself"] = [
        refusal(lambda: ship.enqueue(21)),
        refusal(lambda: ship.enqueue_many([(22,)])),
        refusal(lambda: app.chain(ship.step(23)).enqueue()),
    ]
    in_transaction(ship.options(id="in a written transaction")).enqueue(24)
    on_commit(ship.options(id="after a write")).enqueue(25)
told["after a write"] = [job.id for job in app.client.store.search(Search())][:3]
other = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
with transaction.atomic():
    Order.objects.count()
    other.execute("BEGIN IMMEDIATE")  # another writer, which is waited for
    threading.Timer(0.5, lambda: other.execute("ROLLBACK")).start()
    told["waits for another"] = refusal(lambda: ship.enqueue(26))
other.close()


# A test without a sandbox: jobs are in the database that the test has, and not in the real one.
def in_a_test(name: str | None) -> dict[str, Any]:
    """What the test runner of Django makes of a job, with its database under this name."""
    connection.settings_dict["TEST"]["NAME"] = name
    before = setup_databases(verbosity=0, interactive=False)
    try:
        with transaction.atomic():
            on_commit(ship.options(id="of-a-test")).enqueue(9)
            refused = refusal(lambda: in_transaction(ship).enqueue(10))
        checks = [each.id for each in check_settings()]
        return {"url": app.setup.url, "jobs": jobs(), "refused": refused, "checks": checks}
    finally:
        teardown_databases(before, verbosity=0)
        app.close()


real = len(jobs())
told["in a test"] = [in_a_test(None), in_a_test("test.db")]
told["real jobs of a test"] = len(jobs()) - real

# Settings.
told["same app"] = project_app() is app
told["checks"] = [each.id for each in check_settings()]
settings.ERGON = {"URI": "sqlite:///x.db"}
told["unknown key"] = refusal(settings_of_project)
settings.ERGON = []
told["no dictionary"] = refusal(settings_of_project)
settings.DATABASES["pg"] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "me",
    "PASSWORD": "p@ss/word",
    "HOST": "db.example.org",
    "PORT": 5433,
}
settings.DATABASES["socket"] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "HOST": "/run/postgresql",
}
settings.DATABASES["service"] = {
    "ENGINE": "django.db.backends.postgresql",
    "OPTIONS": {"service": "shop", "pool": True, "isolation_level": 3},
}
settings.DATABASES["options"] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "HOST": "db",
    "OPTIONS": {
        "sslmode": "verify-full",
        "options": "-c search_path=shop",
        "assume_role": "the owner",
    },
}
settings.DATABASES["unknown"] = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "OPTIONS": {"sslmod": "require"},
}
settings.DATABASES["mysql"] = {"ENGINE": "django.db.backends.mysql", "NAME": "shop"}
settings.DATABASES["memory"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
told["urls"] = [url_of(name) for name in ("pg", "socket", "service", "options")]
told["unknown option"] = refusal(lambda: check_url(url_of("unknown")))
told["refused"] = [refusal(lambda name=name: url_of(name)) for name in ("mysql", "memory", "none")]


def url_with(**given: Any) -> str:
    """Where a project keeps its jobs that says this in ERGON."""
    settings.ERGON = given
    return make_app(settings_of_project()).setup.url


Path("queues.toml").write_text("[jobs.queues.default]\nmax_active = 20\n")
Path("stores.toml").write_text('[store]\nurl = "sqlite:///own.db"\n')
told["stores"] = [url_with(CONFIG="queues.toml"), url_with(CONFIG=Path("stores.toml"))]
told["stores"] += [url_with(CONFIG="stores.toml", URL="sqlite:///jobs.db"), url_with()]
os.chdir("shop")
told["stores"] += [url_with(URL="sqlite:///jobs.db")]
del settings.BASE_DIR
told["stores"] += [url_with(URL="sqlite:///jobs.db")]
told["no text"] = refusal(lambda: url_with(URL=Path("jobs.db")))
sys.stdout.write(json.dumps(told))
