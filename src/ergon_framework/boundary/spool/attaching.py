"""Files that come with a fact: kept, named, and referred to in the fact as a producer does it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from ergon_framework.boundary.conversing.files import Artifact, Blob, source_of
from ergon_framework.boundary.facts.schema import spelled
from ergon_framework.boundary.model import Fact, ObjectReceipt
from ergon_framework.boundary.producing.publishing import Publication, check_object, placed
from ergon_framework.boundary.producing.sequence import fact_of
from ergon_framework.boundary.spool.files import SpoolFolder
from ergon_framework.boundary.spool.records import SpooledFile
from ergon_framework.errors import ConfigurationError

Attached: TypeAlias = Artifact | Blob


def attached(
    folder: SpoolFolder,
    fact: Fact | Mapping[str, Any],
    files: Sequence[Attached],
    *,
    is_copied: bool,
) -> tuple[Fact | Mapping[str, Any], tuple[SpooledFile, ...]]:
    """Keep the files, and give the fact references to them; without any it stays as it is."""
    if not files:
        return fact, ()
    plain = fact_of(fact)
    artifacts = [each if isinstance(each, Artifact) else Artifact(each) for each in files]
    check_object(plain, artifacts)
    kept: list[SpooledFile] = []
    try:
        # What was kept before one of them failed is in the list.
        kept.extend(_kept(folder, each, plain.subject, is_copied=is_copied) for each in artifacts)
    except BaseException:
        folder.drop(kept)
        raise
    receipts = [
        ObjectReceipt(bucket=file.bucket, key=file.key, digest=file.digest, size=file.size)
        for file in kept
    ]
    return Publication(plain, artifacts, receipts).ready(), tuple(kept)


def _kept(folder: SpoolFolder, artifact: Artifact, subject: str, *, is_copied: bool) -> SpooledFile:
    with closing(source_of(artifact.path)) as source:
        if is_copied:
            path, digest, size = folder.keep(source)
        elif isinstance(artifact.path, str | os.PathLike):
            digest, size = folder.measure(source)
            path = str(Path(artifact.path).absolute())
        else:
            raise ConfigurationError("only a file can stay where it is", remedy="use copy=True")
    named = placed(artifact, subject, spelled(digest))
    return SpooledFile(
        bucket=named.bucket or "",
        key=named.key or "",
        digest=spelled(digest),
        size=size,
        path=path,
        is_copy=is_copied,
    )
