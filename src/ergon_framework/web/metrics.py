"""``/metrics``: what a part cannot tell leaves the others alone, and is counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from fastapi import APIRouter, Response

from ergon_framework.errors import describe
from ergon_framework.web.answers import NO_STORE
from ergon_framework.web.exposition import MEDIA_TYPE, Family, exposed
from ergon_framework.web.house import House
from ergon_framework.web.job_metrics import job_metrics
from ergon_framework.web.provider_metrics import provider_metrics
from ergon_framework.web.refusals import PartAwayError
from ergon_framework.web.sources import Sources, zone_part
from ergon_framework.web.zone_metrics import zone_metrics

logger = logging.getLogger("ergon.web")

Questions = dict[str, Callable[[], list[Family]]]


def metric_routes(house: House) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter(tags=["metrics"])
    questions = _questions(house.sources)
    errors: Counter[str] = Counter(dict.fromkeys(questions, 0))

    async def told(part: str) -> list[Family] | None:
        try:
            return await house.ask(part, questions[part])
        except Exception as error:
            if not isinstance(error, PartAwayError):  # that one is in the log already
                logger.warning("the metrics of %s cannot be told: %s", part, describe(error))
            errors[part] += 1
            return None

    @router.get(
        "/metrics",
        summary="How everything stands, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """In its text format. A part that does not answer has `ergon_part_up` 0."""
        found = dict(zip(questions, await asyncio.gather(*map(told, questions)), strict=True))
        families = [each for part in found.values() for each in part or ()]
        text = exposed([*_of_parts(found, errors), *families])
        return Response(text, headers=NO_STORE, media_type=MEDIA_TYPE)

    return router


def _questions(sources: Sources) -> Questions:
    def each() -> Iterator[tuple[str, Callable[[], list[Family]]]]:
        if sources.jobs is not None:
            yield "jobs", partial(job_metrics, sources.jobs)
        for name, store in sources.providers.items():
            yield name, partial(provider_metrics, store)
        for name, zone in sources.zones.items():
            yield zone_part(name), partial(zone_metrics, zone)

    return dict(each())


def _of_parts(found: dict[str, list[Family] | None], errors: Counter[str]) -> list[Family]:
    up = [({"part": part}, int(told is not None)) for part, told in found.items()]
    failed = [({"part": part}, number) for part, number in errors.items()]
    return [
        Family("ergon_part_up", "gauge", "1 for a store or zone that answered, else 0.", up),
        Family(
            "ergon_scrape_errors_total",
            "counter",
            "Scrapes in which a part did not answer, since the server started.",
            failed,
        ),
    ]
