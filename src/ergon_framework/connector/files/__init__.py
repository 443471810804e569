"""Rows of files in a folder or a bucket as a source: CSV, JSON Lines and Parquet.

Where to look first: ``rows`` is where rows begin and end, ``text`` what a text file is made of,
``parquet`` the other kind of file, ``formats`` which files are read. ``readiness`` says when a file
may be read, ``positions`` where each was left. ``reader`` puts them together, and ``connector`` is
what the engines call. ``places`` is where files are, as the URL says, ``folder`` a folder of them.
"""

from __future__ import annotations

from ergon_framework.connector.files.connector import FilesConnector
from ergon_framework.connector.files.errors import (
    FilesConnectorError,
    MalformedFileError,
    MalformedRowError,
)

__all__ = ["FilesConnector", "FilesConnectorError", "MalformedFileError", "MalformedRowError"]
