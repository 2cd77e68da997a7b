"""Entry point of a helper process: `python -I main.py TARGET MEMORY_BYTES PARENT_PID SYS_PATH`.

Standard input and output belong to the agent; prints go to standard error, which the agent logs. SYS_PATH is the
agent's sys.path: rankwatch's modules can be imported only after it is set.
"""

import ctypes
import os
import signal
import sys

NICENESS = 10
_PR_SET_PDEATHSIG = 1


def main(target: str, memory_bytes: str, parent_pid: str, sys_path: str) -> int:
    """Set up the process and serve; return the exit status."""
    _die_with(int(parent_pid))
    os.setsid()  # a terminal's Ctrl-C reaches only the agent, which ends its helpers
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # also if a stop signals every process
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except PermissionError as error:  # a sandbox can forbid it
        print(f"not nice: {error}", file=sys.stderr)  # noqa: T201  # the agent logs it
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # takes the lowest number: 0
    os.dup2(2, 1)
    sys.path[:] = sys_path.split(os.pathsep)
    from agent.helper.serve import serve  # noqa: PLC0415  # see the module

    return serve(target, int(memory_bytes), requests, answers)


def _die_with(parent_pid: int) -> None:
    """Make the kernel kill this process when the agent ends in any way; exit at once if the agent has ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")
    if os.getppid() != parent_pid:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
