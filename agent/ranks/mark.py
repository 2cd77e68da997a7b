"""A mark that a user sets in the time line of a job: what is sent, and where to."""

from typing import Annotated

import msgspec

SOCKET = "rankwatch-agent/mark.sock"
"""Below /run."""
MAX_TEXT = 80
"""Characters."""
MAX_REQUEST_BYTES = 1024
MAX_JOB_ID = 128


class MarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of JSON. ``text``: printable, without an end of line."""

    job_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_JOB_ID)]
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class MarkAnswer(msgspec.Struct, frozen=True):
    """One line of JSON. ``refused``: why, or nothing when the mark is set."""

    refused: str = ""
