"""Builds the stub of NVIDIA's library and writes the stub's node; see nvmlstub.c. It replaces no test on a GPU."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvmlstub.c")
LIBRARY = "libnvidia-ml.so.1"
HEALTHY = (Path(__file__).parents[1] / "data/nvml/node").read_text().partition("\n# GPU 1 runs hot")[0].splitlines()
"""Eight healthy GPUs."""
XID = 8
"""The event type in nvml.h."""


def build(directory: Path) -> Path:
    """Build the stub in ``directory`` and return its path; skips the test without a compiler."""
    library = directory / LIBRARY
    compiled = _compiled()
    if not library.exists() or library.read_bytes() != compiled:
        draft = directory / f"{LIBRARY}.{os.getpid()}"
        draft.write_bytes(compiled)
        draft.replace(library)
    return library


@functools.cache
def _compiled() -> bytes:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    with tempfile.TemporaryDirectory() as directory:
        draft = Path(directory) / LIBRARY
        subprocess.run(["cc", *options, str(SOURCE), "-o", str(draft)], check=True)
        return draft.read_bytes()


class Node:
    """The file `node` in ``directory``, which the stub reads: lines KEY VALUE; nvmlstub.c explains the keys."""

    def __init__(self, directory: Path, lines: Iterable[str] = HEALTHY) -> None:
        self.library = build(directory)
        self._path = directory / "node"
        self._sent = 0
        self._values = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
        self._write()

    def update(self, values: Mapping[str, object]) -> None:
        """Change values, by their keys; None removes one."""
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = f"{value}\n"
        self._write()

    def event(self, gpu: int, kind: int, data: int) -> None:
        """Send an event of a GPU."""
        self.events([(gpu, kind, data)])

    def events(self, events: Iterable[tuple[int, int, int]]) -> None:
        """Send events of GPUs together: (gpu, kind, data)."""
        numbered = enumerate(events, self._sent + 1)
        new: dict[str, object] = {f"event{number}": f"{gpu} {kind} {data}" for number, (gpu, kind, data) in numbered}
        self._sent += len(new)
        self.update(new)

    @property
    def keys(self) -> list[str]:
        """Return the keys that have a value."""
        return list(self._values)

    def _write(self) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(f"{key} {value.strip()}\n" for key, value in self._values.items()))
        draft.replace(self._path)
