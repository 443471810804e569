"""Exporting and importing in tests, without watching."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from ergon_framework.app.move import export_file, import_file
from ergon_framework.app.move.export_file import Exported, Exporting, FileOutput
from ergon_framework.app.move.import_file import Imported, Importing
from ergon_framework.app.store_location import StoreLocation


def exported(source: str | Path, file: Path, **how: Any) -> Exported:
    """Export into a file."""
    with closing(FileOutput(file)) as output:
        found = export_file.run(
            Exporting(StoreLocation(str(source)), **how), output, lambda _: None
        )
        output.commit()
        return found


def imported(file: Path, target: str | Path, **how: Any) -> Imported:
    """Import out of a file."""
    return import_file.run(Importing(file, StoreLocation(str(target)), **how), lambda _: None)


def lines_of(file: Path) -> list[bytes]:
    """All lines but the header, which tells when it was written."""
    return file.read_bytes().splitlines(keepends=True)[1:]


def rewritten(file: Path, lines: list[bytes]) -> Path:
    """Another file with the same header and other lines."""
    header = file.read_bytes().splitlines(keepends=True)[0]
    other = file.with_name(f"{file.name}.other")
    other.write_bytes(header + b"".join(lines))
    return other
