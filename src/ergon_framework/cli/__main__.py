"""``python -m ergon_framework.cli``: the same as ``ergon``. Worker processes are started so."""

from __future__ import annotations

from ergon_framework.cli import main

main()
