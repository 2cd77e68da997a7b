"""The script and style of the page, served unchanged."""

import hashlib
from pathlib import Path
from typing import NamedTuple


class StaticFile(NamedTuple):
    """A served file: path, content type and text. ``address`` changes with the text."""

    path: str
    content_type: str
    text: bytes

    @property
    def address(self) -> str:
        """Return the file's address relative to the page: a proxy can serve page and file below another path."""
        return f"{self.path.lstrip('/')}?{hashlib.sha256(self.text).hexdigest()[:8]}"


def _file(name: str, content_type: str) -> StaticFile:
    return StaticFile(f"/{name}", content_type, Path(__file__).with_name(name).read_bytes())


STYLE = _file("page.css", "text/css; charset=utf-8")
SCRIPT = _file("page.js", "text/javascript; charset=utf-8")
