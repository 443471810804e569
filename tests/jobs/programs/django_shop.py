"""A program with Django: what it says is read by the tests.

``python django_shop.py URL ENGINE AWAY NAME [HOST USER]``: the store of jobs, and Django's own
database; AWAY is the file or the host of one that is not there.
"""

import asyncio
import json
import sys
from typing import Any

import django
from django.conf import settings

url, engine, away, name, *server = sys.argv[1:]
host, user = server or ("", "")
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": name,
            "HOST": host,
            "USER": user,
        },
        "away": {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": name if server else away,
            "HOST": away,
        },
    }
)
django.setup()

from django.db import connection, connections, transaction  # noqa: E402 - after its settings

from ergon_framework.errors import StoreError, StoreUnavailableError  # noqa: E402
from ergon_framework.jobs import JobClient  # noqa: E402
from ergon_framework.ports.jobstore import Search  # noqa: E402


async def enqueue_while_a_loop_runs(client: JobClient) -> None:
    """As a careless asynchronous view does."""
    client.enqueue("ship", id="asynchronous", connection=connection)


told: dict[str, Any] = {}
with JobClient(url) as client:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (name TEXT)")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('pie')")
        client.enqueue("ship", id="a", connection=connection)
        transaction.on_commit(client.announce)
    with transaction.atomic():
        client.enqueue("ship", id="undone", connection=connections["default"])
        transaction.set_rollback(True)
    with transaction.atomic():
        client.enqueue("ship", id="b", connection=connection)
        with transaction.atomic():
            client.enqueue("ship", id="half", connection=connection)
            transaction.set_rollback(True)
    try:
        client.enqueue("ship", id="bare", connection=connection)
    except StoreError as error:
        told["refused"] = str(error)
    try:
        client.enqueue("ship", id="away", connection=connections["away"])
    except StoreUnavailableError as error:
        told["away"] = str(error)
    try:
        asyncio.run(enqueue_while_a_loop_runs(client))
    except StoreError as error:
        told["asynchronous"] = str(error)
    told["jobs"] = [job.id for job in client.store.search(Search())]
print(json.dumps(told))
