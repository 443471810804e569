"""The Django application: finds handlers, and checks the settings with ``manage.py check``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.core import checks
from django.db.backends.signals import connection_created

from ergon_framework.errors import ErgonError

logger = logging.getLogger("ergon.integrations.django")


class ErgonConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """Imports the handlers of all installed applications when their models are loaded."""

    name = "ergon_framework.integrations.django"
    label = "ergon"
    verbose_name = "Ergon"

    def ready(self) -> None:
        """Import ``jobs`` of each application that has it, or the modules that
        ``MODULES`` names.
        """
        from ergon_framework.integrations.django.project import settings_of_project

        checks.register(check_settings)
        connection_created.connect(open_beside, dispatch_uid="ergon.open_beside")
        for module in settings_of_project().modules:
            discover(module)


def discover(name: str) -> list[str]:
    """Import the module of that name from each installed application. Returns those
    that have one.
    """
    found = []
    for config in apps.get_app_configs():
        module = f"{config.name}.{name}"
        # Ergon's own application has no handlers. A module that exists and cannot be imported is an
        # error.
        if config.name != ErgonConfig.name and find_spec(module) is not None:
            import_module(module)
            found.append(module)
    return found


def open_beside(connection: Any, **_details: Any) -> None:
    """Open the store when Django opens the same SQLite file, before there is a transaction.

    Opening takes the file's one lock for a moment. A transaction of Django that is open by then
    holds the lock, and would wait for itself when it enqueues its first job. A database that has
    another name by now, such as a test's, is the store from now on.
    """
    from ergon_framework.integrations.django.project import project_app
    from ergon_framework.storage.urls import file_of

    try:
        app = project_app()
        app.follow(connection.alias)
        if connection.vendor != "sqlite":
            return
        file = file_of(app.setup.url)
        if file is not None and file.resolve() == Path(connection.settings_dict["NAME"]).resolve():
            app.client  # noqa: B018 - opens it
    # Code that needs the store gets the error; other code must not be stopped by it.
    except ErgonError as error:
        logger.debug("the job store cannot be opened: %s", error)


def check_settings(_app_configs: Sequence[Any] | None = None, **_options: Any) -> list[Any]:
    """A check for ``manage.py check``: whether the settings name a job store."""
    from ergon_framework.integrations.django.project import project_app
    from ergon_framework.jobs.store_urls import check_url

    try:
        check_url(project_app().setup.url)
    except ErgonError as error:
        return [checks.Error(error.message, hint=error.remedy, id="ergon.E001")]
    return []
