"""Orders over HTTP with Flask, shipped by jobs.

``flask --app shop run`` serves, and ``flask --app shop ergon worker`` beside it runs the jobs.
"""

from flask import Flask, abort, current_app, url_for
from flask.typing import ResponseReturnValue

from ergon_framework.errors import JobNotFoundError
from ergon_framework.integrations.flask import Ergon

jobs = Ergon()  # keeps its jobs in ergon.db, beside this file


@jobs.job(attempts=5, timeout=30)
def ship(order_id: str) -> str:
    """What a worker does with an order, inside of the application's context."""
    return f"{order_id} is on its way with {current_app.config['CARRIER']}"


def create_app() -> Flask:
    """The application, for the server and for the processes of a worker."""
    app = Flask(__name__)
    app.config.from_mapping(CARRIER="Northwind")
    jobs.init_app(app)

    @app.post("/orders/<order_id>")
    def order(order_id: str) -> ResponseReturnValue:
        job = ship.options(unique=order_id).enqueue(order_id)  # on disk when this returns
        return {"job": job, "look": url_for("look", job_id=job)}, 202

    @app.get("/jobs/<job_id>")
    def look(job_id: str) -> ResponseReturnValue:
        try:
            status = jobs.client.status(job_id)
        except JobNotFoundError as error:
            abort(404, error.message)
        result = jobs.client.result(job_id) if status == "completed" else None
        return {"status": status, "result": result}

    return app
