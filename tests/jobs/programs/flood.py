"""An executor that fills its output for ever, in blocks as large as the pipe."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if sys.argv[1] == "asked":
        sys.stdin.readline()
    while True:
        os.write(1, (b"x" * 63 + b"\n") * 1024)
