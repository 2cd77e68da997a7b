"""Keeps OpenSSL out of the process: imported before asyncio, which loads it (6 MB) only to have it there.

The agent neither serves nor asks over TLS. Importing ``ssl`` raises ImportError then, which asyncio and urllib expect.
"""

import sys
from typing import cast

cast(dict[str, object], sys.modules).setdefault("ssl", None)  # unless it is loaded already, as in tests
