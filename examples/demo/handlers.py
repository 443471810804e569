"""What jobs do: plain functions, called by name, in processes that may die at any time."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ergon_framework.app.providers import provider
from ergon_framework.boundary import Consumer
from ergon_framework.executor import JobContext, Registry
from ergon_framework.providers import ProviderExecutionContext

from .books import Books
from .carrier import TENANT

registry = Registry()


@registry.on_startup
def open_everything() -> None:
    """What takes a while to make is made before the first job comes."""
    books()
    node()
    provider("carrier")


@registry.handler
def book(
    job: JobContext,
    shipment: str,
    weight: Any,
    city: str,
    attachments: list[dict[str, Any]] | None = None,
) -> str:
    """Book a pick-up. Whatever is raised here, the job's rule decides what becomes of it."""
    with books().attempt(job.job_id):
        kilos = float(weight)  # "heavy" is no number, however often it is tried
        notes = [node().get_object(each) for each in attachments or ()]
        result = provider("carrier").execute(
            tenant_id=TENANT,
            campaign_id=None,
            operation="book",
            payload={"shipment": shipment, "kilos": kilos, "city": city, "notes": len(notes)},
            context=ProviderExecutionContext(),  # deadline, key and trace are those of the job
        )
        booking = str(result.unwrap()["booking"])  # an open circuit raises, and parks the job
        books().enter(job.job_id, f"booking {booking}")
    return booking


@registry.handler
def label(
    job: JobContext,
    shipment: str,
    weight: float,
    city: str,
    attachments: list[dict[str, Any]] | None = None,
) -> str:
    """Print a label, as ``labels.js`` does where there is Node."""
    with books().attempt(job.job_id):
        text = f"{shipment}, {weight:.1f} kg, {city}"
        books().enter(job.job_id, f"label {text}")
    return text


@cache
def books() -> Books:
    """The handlers' own database, in the folder where everything runs."""
    return Books("books.db")


@cache
def node() -> Consumer:
    """The enterprise's node, for artifacts only."""
    return Consumer(os.environ["ENTERPRISE"], "handlers")
