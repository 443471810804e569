"""The node of the zone, as ``ergon boundary serve`` runs it.

python -m tests.campaign.programs.node URL ZONE BOOK PORT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(url: str, zone: str, path: str, port: str) -> None:
    """Become the command; it says on its standard output when it is ready."""
    words = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve", "--zone", zone]
    words += ["--store", url, "--data", str(Path(path).with_name("zone")), "--insecure"]
    words += ["--listen", f"127.0.0.1:{port}", "--log-level", "error"]
    os.execv(sys.executable, words)  # noqa: S606 - our own command


if __name__ == "__main__":
    main(*sys.argv[1:])
