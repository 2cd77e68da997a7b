"""Programs of other users, and a directory that they can enter."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jobs import ROOT

NOBODY = 65534


def as_user(uid: int, *more: str) -> list[str]:
    """Return the words that start a program as a user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *more]


@contextlib.contextmanager
def open_directory(uid: int = NOBODY) -> Iterator[Path]:
    """Provide a directory that every user may enter, with the agent's packages and a user's own directory `home`."""
    with tempfile.TemporaryDirectory(prefix="rankwatch-test-") as path:
        directory = Path(path)
        directory.chmod(0o755)
        for package in ("agent", "exporters"):
            shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
        (directory / "home").mkdir()
        os.chown(directory / "home", uid, uid)
        yield directory
