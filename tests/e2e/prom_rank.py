"""A process that looks like a rank whose Inspector is in Prometheus mode: `python prom_rank.py FILE`.

Each line of its input is a text, as Python writes texts; FILE is made to hold it as the plugin does: it is emptied in
place, filled line by line, and stays open until the next time. `written` on its output says that this is done. It
leaves when its input ends.
"""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from typing import IO


def bear_the_name() -> None:
    """Have a thread that is called as NCCL's is."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()


def write(path: str, text: str) -> IO[str]:
    """Write ``path`` anew; returns the open file."""
    file = open(path, "w")  # noqa: SIM115  # stays open
    for line in text.splitlines(keepends=True):
        file.write(line)
        file.flush()
    print("written", flush=True)  # noqa: T201  # the test waits for it
    return file


def main(path: str) -> None:
    """Write whenever told to."""
    threading.Thread(target=bear_the_name, daemon=True).start()
    file: IO[str] | None = None
    for line in sys.stdin:
        if file is not None:
            file.close()
        file = write(path, ast.literal_eval(line))


if __name__ == "__main__":
    main(*sys.argv[1:])
