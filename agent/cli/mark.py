"""`rankwatch mark`: set a mark in the time line of one of the user's own jobs."""

import argparse
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.cli.terminal import refuse
from agent.ranks.mark import MAX_REQUEST_BYTES, MAX_TEXT, SOCKET, MarkAnswer, MarkRequest

TIMEOUT_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Send the mark to this node's agent; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="rankwatch mark",
        description="Set a mark in the time line (on the dashboard) of one of your jobs with ranks on this node.",
    )
    parser.add_argument("--job", required=True, metavar="ID", help="the job's id, as the agent shows it")
    parser.add_argument("--socket", type=Path, default=Path("/run") / SOCKET, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("text", metavar="TEXT", help=f"what happened, {MAX_TEXT} characters at most")
    flags = parser.parse_args(list(arguments))
    try:
        request = msgspec.convert({"job_id": flags.job, "text": flags.text}, MarkRequest)
        refused = _ask(flags.socket, request).refused
    except OSError as error:
        refused = f"no agent listens at {flags.socket}: {error.strerror or error}; systemctl start rankwatch"
    except msgspec.MsgspecError as error:
        refused = str(error)
    return refuse("mark", refused) if refused else 0


def _ask(path: Path, request: MarkRequest) -> MarkAnswer:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(TIMEOUT_SECONDS)
        agent.connect(str(path))
        agent.sendall(msgspec.json.encode(request) + b"\n")
        answer = agent.makefile("rb").readline(MAX_REQUEST_BYTES)
    return msgspec.json.decode(answer, type=MarkAnswer)
