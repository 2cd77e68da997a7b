"""A program: the process that ``attempts.py`` attacks. It writes to its argument where it keeps what, and waits."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

KEPT = ctypes.create_string_buffer(b"harmless", 8)


def main() -> None:
    """Keep eight bytes and a file that is memory."""
    memory_file = os.memfd_create("kept")
    os.ftruncate(memory_file, 4096)
    kept = {"pid": os.getpid(), "address": ctypes.addressof(KEPT), "memory_file": memory_file}
    made = Path(sys.argv[1] + ".new")
    made.write_text(json.dumps(kept))
    made.chmod(0o644)
    made.rename(sys.argv[1])
    signal.pause()


if __name__ == "__main__":
    main()
