"""What executors of a Django project load: Django is set up before handlers are imported."""

import django

django.setup()

from ergon_framework.integrations.django.project import project_app  # noqa: E402 - needs Django

app = project_app()
