"""Builds the stub of NVIDIA's library and writes the node that it shows; see nvmlstub.c. No GPU is tested with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvmlstub.c")
LIBRARY = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Compile the stub into ``directory``, unless it is there and newer than its source, and return its path."""
    library = directory / LIBRARY
    if library.exists() and library.stat().st_mtime > SOURCE.stat().st_mtime:
        return library
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    draft = directory / f"{LIBRARY}.{os.getpid()}"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(["cc", *options, str(SOURCE), "-o", str(draft)], check=True)
    draft.replace(library)
    return library


class Node:
    """The node that the stub in ``directory`` shows: lines of nvmlstub.c, by their keys."""

    def __init__(self, directory: Path, lines: Iterable[str]) -> None:
        self.library = build(directory)
        self._path = directory / "node"
        self._events = 0
        self._values = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
        self._write()

    def set(self, **values: object) -> None:
        """Change values; None removes one. In names, `__` stands for a dot and `_all_` for an asterisk."""
        self.update({key.replace("_all_", "*").replace("__", "."): value for key, value in values.items()})

    def update(self, values: dict[str, object]) -> None:
        """Change values, by their keys; None removes one."""
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = f"{value}\n"
        self._write()

    def event(self, gpu: int, kind: int, data: int) -> None:
        """Have a GPU tell something."""
        self._events += 1
        self.update({f"event{self._events}": f"{gpu} {kind} {data}"})

    def _write(self) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(f"{key} {value.strip()}\n" for key, value in self._values.items()))
        draft.replace(self._path)
