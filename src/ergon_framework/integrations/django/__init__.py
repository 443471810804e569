"""Jobs in Django: one App for the project, and jobs that follow a transaction.

::

    INSTALLED_APPS = [..., "ergon_framework.integrations.django", "shop"]

    # shop/jobs.py, which is imported when Django starts
    from ergon_framework.integrations.django import app, in_transaction, on_commit


    @app.job(attempts=5)
    def ship(order_id: int) -> None: ...


    # shop/views.py
    with transaction.atomic():
        order = Order.objects.create(name="pie")
        on_commit(ship).enqueue(order.pk)

``python manage.py ergon worker`` runs the jobs. There are no models and no migrations: the store
makes its own tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ergon_framework.errors import MissingExtraError

if TYPE_CHECKING:
    from ergon_framework.app.application import App
    from ergon_framework.integrations.django.enqueueing import in_transaction, on_commit

    app: App

__all__ = ["app", "in_transaction", "on_commit"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported late: this module is imported while Django reads its settings, and the App needs
    # them.
    try:
        from ergon_framework.integrations.django import enqueueing, project
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("asgiref", "django"):
            raise
        raise MissingExtraError(
            "ergon_framework.integrations.django needs Django",
            remedy="pip install 'ergon-framework[django]'",
        ) from error
    return project.project_app() if name == "app" else getattr(enqueueing, name)
