"""Jobs in Flask: an App that is a Flask extension.

::

    jobs = Ergon()


    @jobs.job(attempts=5)
    def ship(order_id: str) -> str:
        return current_app.config["CARRIER"].take(order_id)  # inside the application's context


    def create_app() -> Flask:
        app = Flask(__name__)
        jobs.init_app(app)
        return app

``flask --app shop ergon worker`` runs the jobs; every other command of ``ergon`` is there, too:
``flask --app shop ergon jobs list``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from ergon_framework.app.application import App
from ergon_framework.errors import MissingExtraError, WiringError
from ergon_framework.integrations.commands import run_command
from ergon_framework.ports.unit_of_work import UnitOfWork

try:
    import click
    from flask import Flask, current_app, has_app_context
    from flask.cli import ScriptInfo, pass_script_info
except ImportError as error:
    raise MissingExtraError(
        "ergon_framework.integrations.flask needs Flask",
        remedy="pip install 'ergon-framework[flask]'",
    ) from error

__all__ = ["Ergon", "get_ergon"]

EXTENSION = "ergon"
"""The name of the extension in ``app.extensions``."""
EXECUTOR = "ergon_framework.integrations.flask.executor:app"
"""The module that executors load when ``flask`` starts a worker: it loads the application first."""
FLASK_APP = "FLASK_APP"


class Ergon(App):
    """An App whose handlers run in the context of a Flask application.

    It takes what :class:`App` takes: the URL of a store, the path of a settings file, or nothing.
    """

    flask_app: Flask | None = None
    """The application that was passed last, or that a command of ``flask`` has loaded."""
    _is_loaded_by_flask = False

    def init_app(self, app: Flask) -> None:
        """Add ``app.extensions["ergon"]`` and the commands ``flask ergon …``.

        Applications may share an extension, and its store with it. A job runs in the context of the
        application whose worker runs it: of the one that ``flask --app`` names, of the current one
        in ``drain()``, and otherwise of the one that was given last.
        """
        if app.extensions.get(EXTENSION, self) is not self:
            raise WiringError(
                f"the Flask application {app.name!r} has another Ergon, whose jobs no command of"
                " flask would find any more",
                remedy="declare the handlers with that one, or give this one another application",
            )
        # Once: a middleware for each application would open as many contexts around each job.
        if self.flask_app is None:
            self.middleware("job", "consumer")(self._in_context)
        self.flask_app = app
        app.extensions[EXTENSION] = self
        app.cli.add_command(_command)

    def _in_context(self, _unit: UnitOfWork) -> Iterator[None]:
        """A new context for each job, so that what a handler puts into ``g`` ends with the job."""
        app = self.flask_app
        if has_app_context() and current_app.extensions.get(EXTENSION) is self:
            app = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001
        if app is None:  # pragma: no cover - it is added by init_app
            raise WiringError("there is no Flask application", remedy="call init_app(app)")
        with app.app_context():
            yield

    def _reference(self) -> str:
        return EXECUTOR if self._is_loaded_by_flask else super()._reference()

    def load_by_flask(self, import_path: str | None) -> None:
        """Make executors load the application as ``flask --app`` does."""
        self._is_loaded_by_flask = True
        if import_path is not None:
            os.environ[FLASK_APP] = import_path


def loaded_ergon(info: ScriptInfo) -> Ergon:
    """The extension of the application that ``flask --app`` names, whose context jobs run in."""
    app = info.load_app()
    found = get_ergon(app)
    found.flask_app = app
    return found


def get_ergon(app: Flask | None = None) -> Ergon:
    """The extension of an application; by default of the current application."""
    if app is None and not has_app_context():
        raise WiringError(
            "there is no current Flask application",
            remedy="with app.app_context(): …, or give the application",
        )
    found = (app or current_app).extensions.get(EXTENSION)
    if not isinstance(found, Ergon):
        raise WiringError(
            "this Flask application has no jobs", remedy="jobs = Ergon(); jobs.init_app(app)"
        )
    return found


@click.command(
    EXTENSION,
    short_help="Run jobs (worker), or any command of ergon.",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # Each command has its own help.
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_script_info
def _command(info: ScriptInfo, words: Sequence[str]) -> None:
    """Run jobs (worker), or any command of ergon on the store of this application."""
    app = loaded_ergon(info)
    app.load_by_flask(info.app_import_path)
    sys.exit(run_command(app, words, program="flask ergon"))
