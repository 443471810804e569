"""A small Django project; its jobs are in its own database."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent

SECRET_KEY = "not a secret, as this is an example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "urls"
USE_TZ = True

INSTALLED_APPS = ["ergon_framework.integrations.django", "shop"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.db",
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# ERGON = {"URL": "…"} would keep the jobs elsewhere.
