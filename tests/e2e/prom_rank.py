"""A process that looks like a rank whose Inspector is in Prometheus mode: `python prom_rank.py FILE`.

Each line of its input names a file; what that holds is written to FILE as the plugin does: FILE is emptied in place,
filled line by line, and stays open until the next time. `written` on its output says that this is done. It leaves when
its input ends.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import IO

from idle_rank import wait


def write(path: str, source: str) -> IO[str]:
    """Write ``path`` anew; returns the open file."""
    file = open(path, "w")  # noqa: SIM115  # stays open
    for line in Path(source).read_text().splitlines(keepends=True):
        file.write(line)
        file.flush()
    print("written", flush=True)  # noqa: T201  # the test waits for it
    return file


def main(path: str) -> None:
    """Write whenever told to."""
    threading.Thread(target=wait, args=("NCCL RAS", "", ""), daemon=True).start()
    file: IO[str] | None = None
    for line in sys.stdin:
        if file is not None:
            file.close()
        file = write(path, line.strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
