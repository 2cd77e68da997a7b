"""A program: the process that ``attempts.py`` attacks.

It writes its pid, an address in its memory and its files to the file ARGUMENT, and waits."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

KEPT = ctypes.create_string_buffer(b"harmless", 8)


def main() -> None:
    """Make eight bytes in memory, a memory file, and two files next to the argument."""
    made = Path(sys.argv[1])
    for name, mode in (("roots", 0o600), ("everybodys", 0o666)):
        (made.parent / name).write_text("x")
        (made.parent / name).chmod(mode)
    memory_file = os.memfd_create("kept")
    os.ftruncate(memory_file, 4096)
    kept = {"pid": os.getpid(), "address": ctypes.addressof(KEPT), "memory_file": memory_file}
    draft = made.with_suffix(".new")
    draft.write_text(json.dumps({**kept, "files": str(made.parent)}))
    draft.chmod(0o644)
    draft.rename(made)
    signal.pause()


if __name__ == "__main__":
    main()
