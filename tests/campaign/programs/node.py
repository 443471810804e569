"""The node of the zone, as ``ergon boundary serve`` runs it.

python -m tests.campaign.programs.node URL ZONE BOOK PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

from ergon_framework.cli import main as ergon


def main(url: str, zone: str, path: str, port: str) -> None:
    """Be the command; it says on its standard output when it is ready."""
    words = ["ergon", "boundary", "serve", "--zone", zone]
    words += ["--store", url, "--data", str(Path(path).with_name("zone")), "--insecure"]
    words += ["--listen", f"127.0.0.1:{port}", "--log-level", "error"]
    sys.argv = words
    ergon()


if __name__ == "__main__":
    main(*sys.argv[1:])
