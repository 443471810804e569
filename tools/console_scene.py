"""What the pictures of the console show: a small shop with work of each kind, some of it failed.

Jobs run in a worker of their own; one flow is held half-way, a zone has set two facts aside, and a
provider has had a bad quarter of an hour.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from ergon_framework.jobs import JobClient
from ergon_framework.ports.providerstore import AttemptRow, RecordBatch

SHOP = """\
import time

from ergon_framework import App
from ergon_framework.providers import ProviderBadRequestError, ProviderDependencyError

app = App(config="ergon.toml")
rates = app.provider("rates", capability="exchange", quota="5000/day", attempts=3, backoff=0.05)
plant = app.zone("plant")


@rates.call
def eur_usd(order: int, *, timeout: float = 5.0) -> float:
    time.sleep(0.03)
    if order % 7 == 0:
        raise ProviderBadRequestError("there is no such currency")
    if order % 3 == 0:
        raise ProviderDependencyError("the rates desk is closed", http_status=503)
    return 1.08


@app.job(name="invoices.render", queue="invoices", attempts=3, backoff=0.5)
def render(order: int) -> dict[str, int]:
    time.sleep(0.2)
    if order % 5 == 0:
        raise KeyError("vat_id")
    return {"pages": order}


@app.job(name="mail.send", queue="mail")
def send(to: str) -> str:
    time.sleep(0.02)
    return to


@app.job(name="rates.refresh", queue="rates", attempts=2, backoff=0.2)
def refresh(order: int) -> float:
    value = eur_usd(order)
    mail = send.enqueue(f"desk{order}@example.com")
    plant.publish(f"rate:{order}", "refreshed", {"usd": value, "mail": mail}, to="hq",
                  id=("refreshed", order, 1))
    return value


@app.job(name="album.collect", queue="albums")
def collect(album: str) -> list[str]:
    return [f"{album}/{n}.jpg" for n in range(48)]


@app.job(name="album.thumbnail", queue="albums", attempts=1)
def thumbnail(picture: int) -> str:
    time.sleep(0.1)
    if picture in (11, 30):
        raise OSError("cannot identify image file")
    return f"{picture}.thumb.jpg"


@app.job(name="album.cover", queue="albums")
def cover() -> str:
    time.sleep(0.5)
    return "cover.jpg"


@app.job(name="album.bind", queue="albums")
def bind(parts: list[str]) -> str:
    return "album.pdf"


@app.job(name="album.publish", queue="albums")
def publish(album: str) -> str:
    return album




def album(name: str, pictures: int):
    steps = [thumbnail.step(n).without_result() for n in range(pictures)]
    return app.chain(
        collect.step(name).without_result(),
        app.group([*steps, cover.step().without_result()]),
        bind.step(),
        app.wait_for_signal("approved", timeout=86400),
        publish.step(),
        name=name,
        on_failure="hold",
    )


if __name__ == "__main__":
    app.run()
"""
SETTINGS = """\
[store]
url = "sqlite:///work.db"

[zones.plant]
data = "plant"
insecure = true
listen = "127.0.0.1:0"

[schedules.nightly-report]
cron = "0 3 * * *"
handler = "shop#mail.send"
args = ["ops@example.com"]

[schedules.hourly-import]
cron = "15 * * * *"
handler = "shop#mail.send"
queue = "imports"
args = ["imports@example.com"]

[server]
port = 0
payloads = true
"""
TRACED = "rate-of-today"
"""A job whose trace is shown."""
ORDERS, MAILS, RATES = 40, 1500, 30
PATIENCE = 240.0
"""Seconds for the jobs to have been tried, on a machine that is busy."""


T = TypeVar("T")


class Scene:
    """The shop in a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.flow = ""
        self.url = f"sqlite:///{place}/work.db"
        (place / "shop.py").write_text(SHOP)
        (place / "ergon.toml").write_text(SETTINGS)

    def trace(self) -> None:
        """Run a job that a command enqueues, which begins a trace, while nothing else runs."""
        with JobClient(self.url) as client:
            # The first one waits until the executors have started.
            for number, name in ((2, "first"), (1, TRACED)):
                enqueue = ("-m", "ergon_framework.cli", "enqueue", "shop#rates.refresh")
                options = ("--args", f"[{number}]", "--queue", "rates", "--id", name)
                command = [sys.executable, *enqueue, *options]
                subprocess.run(  # noqa: S603 - our own program
                    command, cwd=self.place, check=True, stdout=subprocess.DEVNULL
                )
                _waited(partial(_has_done, client, 2 * (3 - number)))

    def fill(self) -> None:
        """Give the shop its work."""
        self.flow = self.run(
            f"""
for order in range(1, {ORDERS + 1}):
    shop.render.options(tags=["customer:%d" % (order % 9)]).enqueue(order)
for order in range(3, {RATES + 1}):
    shop.refresh.enqueue(order)
client = shop.app.client
mails = [("shop#mail.send", ["user%d@example.com" % n]) for n in range({MAILS})]
client.enqueue_many(mails, queue="mail")
client.enqueue_many([("node#thumbs.make", ["%d.png" % n]) for n in range(12)], queue="thumbs")
client.store.set_queue("imports", is_paused=True)
client.enqueue("shop#mail.send", ["imports@example.com"], queue="imports")
print(shop.album("album summer", 48).enqueue().id)
shop.album("album winter", 8).enqueue()
"""
        )
        self._call()

    def run(self, code: str) -> str:
        """Do something with the shop's own App, in a process of its own; what it prints."""
        text = f"import shop\n{code}\nshop.app.close()"
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", text], cwd=self.place, check=True, stdout=subprocess.PIPE
        )
        return done.stdout.decode().strip()

    @contextmanager
    def working(self, *command: str, tells: bool = False) -> Iterator[subprocess.Popen[str]]:
        """A program of the shop, until the pictures are taken; what it tells may be read."""
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *command],
            cwd=self.place,
            stdout=subprocess.PIPE if tells else subprocess.DEVNULL,
            stderr=subprocess.PIPE if tells else subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def places(self) -> dict[str, str]:
        """Wait until enough has happened; where the pages are that show it."""
        with JobClient(self.url) as client:
            dead = _waited(lambda: _enough(client, self.flow))
        self._set_aside()
        return {"dead": dead, "trace": TRACED, "flow": self.flow}

    def _call(self) -> None:
        """An hour of calls, of which a quarter of an hour went badly."""
        from ergon_framework.providers.store_urls import open_store

        dice, now = Random(25), time.time()  # noqa: S311 - the same calls each time
        rows: list[AttemptRow] = []
        for minute in range(60, 2, -1):
            is_bad = 26 <= minute <= 34
            for number in range(dice.randint(3, 9) if is_bad else dice.randint(12, 30)):
                at = now - 60 * minute + number
                failed = dice.random() < (0.7 if is_bad else 0.01)
                rows.append(_attempt(f"past-{minute}-{number}", at, dice, is_failed=failed))
        with closing(open_store(self.url)) as store:
            store.record(RecordBatch(rows))

    def _set_aside(self) -> None:
        """A consumer that has read some facts, and could not read two of them."""
        from ergon_framework.boundary.data_folder import FILE
        from ergon_framework.boundary.factstore.sqlite import SqliteFactStore

        with closing(SqliteFactStore(self.place / "plant" / FILE, zone="plant")) as store:
            for name in ("erp", "reporting"):
                store.create_consumer(name, "outbound")
            store.set_aside("erp", 1, reason="bad_payload", message="usd is no number", attempts=5)
            store.set_aside("erp", 2, reason="timeout", message="no answer in 30 s", attempts=5)


def _attempt(name: str, at: float, dice: Random, *, is_failed: bool) -> AttemptRow:
    return AttemptRow(
        id=name,
        tenant_id=dice.choice(["acme", "acme", "globex"]),
        task_execution_id=None,
        provider_name="rates",
        capability="exchange",
        operation="eur_usd",
        idempotency_key=None,
        correlation_id=f"order-{name}",
        attempt_number=1,
        max_attempts=3,
        duration_ms=dice.randint(400, 2000) if is_failed else dice.randint(20, 90),
        timeout_budget_ms=5000,
        outcome="failed" if is_failed else "success",
        reason_code="timeout" if is_failed else None,
        retryable=is_failed,
        http_status=None,
        created_at=at,
    )


def _has_done(client: JobClient, number: int) -> bool | None:
    return client.count(status="completed") >= number or None


def _enough(client: JobClient, flow: str) -> str | None:
    dead = [job.id for job in client.jobs(status="failed", handler="shop#invoices.render")]
    done = client.count(status="completed")
    stands = client.flow(flow).status()
    if len(dead) < ORDERS // 5 or done < MAILS / 4 or stands != "held":
        return None
    return dead[0]


def _waited(look: Callable[[], T | None]) -> T:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.2)
    raise SystemExit("the jobs were not tried in time: is this machine very busy?")
