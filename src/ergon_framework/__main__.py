"""``python -m ergon_framework``: the same as ``ergon``, where its folder is not on the PATH."""

from __future__ import annotations

from ergon_framework.cli import main

main()
