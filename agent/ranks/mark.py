"""Request, reply and socket path of `rankwatch mark`, which sets a mark in a job's time line."""

from typing import Annotated

import msgspec

SOCKET = "rankwatch-agent/mark.sock"
"""Path of the socket below /run."""
MAX_TEXT = 80
"""Limit of a mark's text in characters."""
MAX_REQUEST_BYTES = 1024
MAX_JOB_ID = 128


class MarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request: one line of JSON. ``text``: printable, without a line break."""

    job_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_JOB_ID)]
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class MarkAnswer(msgspec.Struct, frozen=True):
    """The reply: one line of JSON. ``refused``: the reason; empty when the mark is set."""

    refused: str = ""
