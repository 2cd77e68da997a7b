"""One of two processes of jax.distributed: `jax_processes.py [COORDINATOR NUMBER]`.

By default both values come from the environment. The processes work until the file END exists."""

from __future__ import annotations

import os
import sys
import time

import jax
from jax.experimental import multihost_utils

explicit = (sys.argv[1], 2, int(sys.argv[2])) if len(sys.argv) > 1 else ()
jax.distributed.initialize(*explicit)
while not multihost_utils.broadcast_one_to_all(os.path.exists(os.environ.get("END", ""))):
    time.sleep(0.2)
