"""Provider calls in the settings: which store keeps their quotas, health and records."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import SecretStr

from ergon_framework.ports.document import Document, OrNone


class ProvidersSettings(Document):
    """``[providers]``: where provider calls keep what they know."""

    store: Annotated[SecretStr | None, OrNone] = None  # a URL may hold a password


SECTIONS: dict[str, tuple[Any, bool]] = {"providers": (ProvidersSettings, True)}
"""What the settings file may hold for provider calls, and whether there may be secrets in it."""
