"""The settings that this server was started with, without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from ergon_framework.app.settings.secrets import sounds_secret
from ergon_framework.app.settings.sections import Settings
from ergon_framework.redaction import redacted_text
from ergon_framework.storage.urls import shown_url

SETTING_COLUMNS = ("section", "key", "value", "from")
HIDDEN = "hidden"
_OURS = ("store", "telemetry", "server", "connectors", "services", "policies", "tasks")


def settings_document(settings: Settings, environ: Mapping[str, str] | None = None) -> Any:
    """Every setting with its value and the value's origin."""
    environ = os.environ if environ is None else environ
    variables = {name.upper() for name in environ if name.upper().startswith("ERGON_")}
    sections: list[tuple[str, Any]] = [(name, getattr(settings, name)) for name in _OURS]
    sections += sorted(settings.extensions.items())
    rows = [row for name, value in sections for row in _rows(name, value, variables)]
    return {
        "file": None if settings.file is None else settings.file.name,
        "items": rows,
        "sections": list(dict.fromkeys(row["section"] for row in rows)),
    }


def _rows(section: str, value: Any, variables: Iterable[str]) -> Iterator[dict[str, Any]]:
    for path, shown, is_set in leaves(value, (), is_set=False):
        if not path:
            continue  # A table without entries.
        name = "__".join(("ERGON_" + section, *path)).upper()
        origin = "variable" if name in variables else ("settings" if is_set else "default")
        yield {"section": section, "key": ".".join(path), "value": shown, "from": origin}


def leaves(value: Any, path: tuple[str, ...], *, is_set: bool) -> Iterator[tuple[Any, str, bool]]:
    """Every value below another one: its path, its text, and whether it was set."""
    if isinstance(value, BaseModel):
        given = value.model_fields_set
        for name, inner in value:
            yield from leaves(inner, (*path, name), is_set=name in given)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from leaves(getattr(value, each.name), (*path, each.name), is_set=is_set)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, str(name)), is_set=True)
    else:
        yield path, text_of(value, path[-1] if path else ""), is_set


def text_of(value: Any, name: str) -> str:
    """A value as text. A value that may be a secret is not shown."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
        return shown_url(value) or HIDDEN
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int | float):
        return str(value) if isinstance(value, int) else f"{value:.12g}"
    if isinstance(value, str | Path):
        text = str(value)
        if text and sounds_secret(name):
            return shown_url(text) or HIDDEN
        return redacted_text(text)
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(text_of(each, name) for each in value) or "none"
    # A part may keep anything in its settings, so values of unknown types are not shown.
    return "none" if isinstance(value, Mapping) else type(value).__name__
