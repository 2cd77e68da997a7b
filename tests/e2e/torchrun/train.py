"""A rank under torchrun: waits for the file GO, then rank 1 ends as the argument says."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from misbehaviour import misbehave
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    """Wait, then end; in a restarted run wait without end."""
    go, how = Path(sys.argv[1]), sys.argv[2]
    while not go.exists() or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        time.sleep(0.1)
    if os.environ["RANK"] == "1":
        misbehave(how)
    time.sleep(0.0 if how == "end" else 600.0)


main()
