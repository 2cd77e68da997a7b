"""OpenSSL stays out of the daemon: asyncio loads it (6 MB of memory) wherever it is found, needed or not."""

import sys
from typing import cast


def leave_out() -> None:
    """Have ``import ssl`` raise ImportError from now on, which asyncio expects; no effect once it is loaded.

    To be called before asyncio is imported. The daemon neither serves nor asks over TLS.
    """
    cast(dict[str, object], sys.modules).setdefault("ssl", None)
