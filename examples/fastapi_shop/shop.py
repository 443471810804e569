"""Orders over HTTP, shipped by jobs.

``uvicorn shop:api`` serves, and ``python shop.py`` beside it runs the jobs.
"""

from typing import Any

from fastapi import FastAPI, HTTPException

from ergon_framework import App
from ergon_framework.errors import JobNotFoundError
from ergon_framework.integrations.fastapi import AsyncClient, Client, lifespan, routes

jobs = App()


@jobs.job(attempts=5, timeout=30)
def ship(order_id: str, *, express: bool = False) -> str:
    """What a worker does with an order."""
    return f"{order_id} is on a {'plane' if express else 'truck'}"


api = FastAPI(lifespan=lifespan(jobs))
api.mount("/ergon", routes(jobs))


@api.post("/orders/{order_id}", status_code=202)
async def order(order_id: str, *, express: bool = False) -> dict[str, str]:
    """On disk when this answers; the same order twice is one job."""
    job = await ship.options(unique=order_id).aenqueue(order_id, express=express)
    return {"job": job}


@api.get("/jobs/{job_id}")
def look(job_id: str, client: Client) -> dict[str, Any]:
    """Where a job stands."""
    try:
        return {"status": client.status(job_id)}
    except JobNotFoundError as error:
        raise HTTPException(404, error.message) from error


@api.get("/jobs/{job_id}/result")
async def result(job_id: str, client: AsyncClient) -> dict[str, Any]:
    """Wait for a job, without holding a thread."""
    return {"result": await client.result(job_id, timeout=30)}


if __name__ == "__main__":
    jobs.run()
