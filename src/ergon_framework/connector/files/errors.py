"""The errors of the connector for files."""

from __future__ import annotations

from typing import ClassVar

from ergon_framework.errors import ConnectorError


class FilesConnectorError(ConnectorError):
    """The connector was asked for something it must refuse, or its files failed it."""

    code = "files_connector"


class FilesLockedError(FilesConnectorError):
    """Another connector, in this or another process, reads as the same consumer."""

    code = "files_locked"
    is_refusal: ClassVar[bool] = True


class MalformedRowError(FilesConnectorError):
    """A row cannot be read, and is set aside."""

    code = "malformed_row"


class MalformedFileError(FilesConnectorError):
    """A file cannot be read from some place on. The rest of it is set aside."""

    code = "malformed_file"


class FileChangedError(FilesConnectorError):
    """A file was replaced while it was being read."""

    code = "file_changed"
