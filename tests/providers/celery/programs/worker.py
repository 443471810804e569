"""A Celery worker whose provider does what the payload of each call says.

``worker.py BROKER STORE`` with the words of ``celery worker`` after them. What the provider does
is told on the Redis list ``events``; what it waits for comes on lists of Redis as well. A circuit
stays open for ``PUPPET_COOLDOWN`` seconds. A message that a worker has not acknowledged is
delivered again after ``PUPPET_VISIBILITY`` seconds. With ``PUPPET_OUTLIVES`` children live on when
the main process is killed, as they do where the system does not end them with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import redis
from celery import Celery, platforms

from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.celery_task import CeleryProviderTask
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy

WAIT_TIMEOUT = 60
COOLDOWN = float(os.environ.get("PUPPET_COOLDOWN", "2"))
VISIBILITY = float(os.environ.get("PUPPET_VISIBILITY", "3600"))


class Puppet(ProviderBase):
    """Each call takes the next word of its script; the count lives in Redis."""

    provider_name, capability = "puppet", "act"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._redis = redis.Redis(
            unix_socket_path=url.removeprefix("redis+socket://"),
            decode_responses=True,
            socket_timeout=None,
        )

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        name = payload["name"]
        number = self._redis.incr(f"calls:{name}")
        script = payload.get("script", ["ok"])
        word = script[min(number, len(script)) - 1]
        event = {"name": name, "call": number, "word": word, "pid": os.getpid()}
        self._redis.rpush(f"events:{name}", json.dumps(event))
        if word == "hold":
            self._redis.blpop([f"go:{name}"], timeout=WAIT_TIMEOUT)
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word != "ok":
            raise ERROR_OF[word](f"the puppet was told {word}")
        return {"call": number, "key": context.idempotency_key}


def make_app(broker: str, store: str) -> Celery:
    """The app, as the worker and the tests have it."""
    app = Celery("puppets", broker=broker, backend=broker)
    app.conf.update(
        broker_transport_options={"visibility_timeout": VISIBILITY, "polling_interval": 0.05},
        worker_prefetch_multiplier=1,
        task_default_queue="puppets",
        broker_connection_retry_on_startup=True,
    )

    def puppet() -> Puppet:
        return Puppet(
            broker,
            store=store,
            retry_policy=RetryPolicy(base_delay_seconds=0.01, max_delay_seconds=0.02),
            circuit_breaker=CircuitBreaker(failure_threshold=3, open_cooldown_seconds=COOLDOWN),
            quota=QuotaPolicy(limit=1_000_000, window_seconds=3600),
        )

    class PuppetTask(CeleryProviderTask):
        name = "puppet.act"
        max_redeliveries = 2
        timeout_budget_seconds = 40.0
        provider_factory = staticmethod(puppet)

    class HurriedTask(PuppetTask):
        """Ended by Celery, the hard way, when its call takes longer than it may."""

        name = "puppet.hurry"
        max_redeliveries = 1
        timeout_budget_seconds = 3.0  # a busy machine has to come to the call within it
        time_limit = 6.0

    app.register_task(PuppetTask())
    app.register_task(HurriedTask())
    return app


if __name__ == "__main__":
    if os.environ.get("PUPPET_OUTLIVES"):
        platforms.set_pdeathsig = lambda _: None
    make_app(sys.argv[1], sys.argv[2]).worker_main(["worker", *sys.argv[3:]])
