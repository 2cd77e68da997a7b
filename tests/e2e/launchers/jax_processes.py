"""One of two processes of jax.distributed: `jax_processes.py [COORDINATOR NUMBER]`; else the environment says them."""

from __future__ import annotations

import sys
import time

import jax
from jax.experimental import multihost_utils

explicit = (sys.argv[1], 2, int(sys.argv[2])) if len(sys.argv) > 1 else ()
jax.distributed.initialize(*explicit)
while True:
    multihost_utils.sync_global_devices("step")
    time.sleep(0.2)
