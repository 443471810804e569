"""Archives what may go from a store into a folder, until nothing is left or a failpoint ends it."""

from __future__ import annotations

import sys
from pathlib import Path

from ergon_framework.jobs.archive_files import JobArchive
from ergon_framework.jobs.archiver import Archiver
from ergon_framework.jobs.store_urls import open_store

store = open_store(sys.argv[1])
archiver = Archiver(store, JobArchive(Path(sys.argv[2]), max_file_size=4096))
while archiver.turn():
    pass
store.close()
