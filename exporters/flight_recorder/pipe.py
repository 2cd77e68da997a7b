"""Runs in the helper: writes a byte to a rank's pipe, so that PyTorch dumps its flight recorder. Blocking.

ProcessGroupNCCL makes a FIFO `<TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe`. Each byte in it triggers one dump, and the
training continues. The helper writes only to a FIFO of the rank's own user, and only if a process reads it.
"""

from __future__ import annotations

import errno
import os
from typing import Literal

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import OtherUserError, open_pipe_inside

GRACE_SECONDS = 1.0

AskResult = Literal["asked", "no_pipe", "no_reader", "other_user", "not_permitted", "full", "unanswered"]
_BY_ERROR: dict[int, AskResult] = {
    errno.ENXIO: "no_reader",
    errno.EACCES: "not_permitted",
    errno.EPERM: "not_permitted",
    errno.EROFS: "not_permitted",
    errno.EAGAIN: "full",
}


class PipeRequest(msgspec.Struct, frozen=True):
    """``path``: the FIFO, as process ``pid`` of ``proc_root`` sees it; ``uid``: the rank's user."""

    path: str
    proc_root: str
    pid: int
    uid: int


def ask_for_dumps(requests: list[PipeRequest], _body: bytes) -> list[AskResult]:
    """Write a byte to each pipe and return the results. A hanging file system affects only its user's requests."""
    return [result or "unanswered" for result in _askers.answers(requests, GRACE_SECONDS)]


def _ask(request: PipeRequest) -> AskResult:
    try:
        fd = open_pipe_inside(f"{request.proc_root}/{request.pid}/root", request.path, request.uid)
    except OtherUserError:
        return "other_user"
    except OSError as error:
        return _BY_ERROR.get(error.errno or 0, "no_pipe")
    except ValueError:  # a NUL in the path
        return "no_pipe"
    try:
        os.write(fd, b"1")
    except OSError as error:
        return _BY_ERROR.get(error.errno or 0, "no_reader")
    finally:
        os.close(fd)
    return "asked"


_askers: ByUser[PipeRequest, AskResult] = ByUser(_ask)
