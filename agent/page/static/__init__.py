"""The page's script and style, which the agent serves as they are."""

import hashlib
from pathlib import Path
from typing import NamedTuple


class StaticFile(NamedTuple):
    """A file that is served: its path, its type and its text. The address changes with the text."""

    path: str
    content_type: str
    text: bytes

    @property
    def address(self) -> str:
        """Where the page finds it, beside itself: a proxy may serve both below a path of its own."""
        return f"{self.path.lstrip('/')}?{hashlib.sha256(self.text).hexdigest()[:8]}"


def _file(name: str, content_type: str) -> StaticFile:
    return StaticFile(f"/{name}", content_type, Path(__file__).with_name(name).read_bytes())


STYLE = _file("page.css", "text/css; charset=utf-8")
SCRIPT = _file("page.js", "text/javascript; charset=utf-8")
