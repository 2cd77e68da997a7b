"""The agent's view in the shipped unit, with and without each drop-in, and its notes about missing rights."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from booted import ROOT, boot, install, layered, why_not_booted
from full import full

OTHER_USERS, HARDWARE = "50-other-users.conf", "55-hardware.conf"
E2E = Path(__file__).parent
RANK = """\
[Unit]
After=slow.service
[Service]
User=nobody
Restart=always
RestartSec=1
Environment=SLURM_JOB_ID=77 RANK=0 WORLD_SIZE=2 NCCL_INSPECTOR_DUMP_DIR=/var/lib/rankwatch/inspector
ExecStart=/opt/rankwatch/bin/python -B /opt/test/tests/e2e/held_rank.py read /mnt/slow/data
"""
SLOW = """\
[Service]
Type=exec
Environment=PYTHONPATH=/opt/test/tests/e2e
ExecStartPre=/bin/mkdir -p /mnt/slow
ExecStart=/opt/rankwatch/bin/python -B /opt/slow.py
"""
SLOWS = """\
import pathlib, signal
import slow_files
with slow_files.slow_file(pathlib.Path("/mnt/slow")):
    signal.pause()
"""
PIPED_RANK = """\
[Service]
User=nobody
WorkingDirectory=/opt/test
Environment=TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/opt/pipes/trace_
ExecStartPre=+/bin/install -d -o nobody /opt/pipes
ExecStartPre=/opt/rankwatch/bin/python /opt/pipe.py
ExecStart=/opt/rankwatch/bin/python -B -m agent.simulate --ranks 2 --stuck 1 --stuck-at-step 20 \\
    --job-dir /opt/job --dump-dir /var/lib/rankwatch/inspector --scheduler slurm
ExecStartPre=+/bin/install -d -o nobody /opt/job
"""
PIPE = """\
import os
os.mkfifo("/opt/pipes/trace_0.pipe")
"""
ALLOWED_PIPE = """\
import os, pwd, struct
ME, USER, GROUP, MASK, OTHERS, NO_ID = 1, 2, 4, 16, 32, 0xFFFFFFFF
agent = pwd.getpwnam("rankwatch").pw_uid
entries = [(ME, 7, NO_ID), (USER, 6, agent), (GROUP, 5, NO_ID), (MASK, 7, NO_ID), (OTHERS, 5, NO_ID)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
os.setxattr("/opt/pipes", "system.posix_acl_default", acl)
"""
"""The effect of `setfacl -d -m u:rankwatch:rw`."""
READER = """\
[Unit]
After=rank.service
[Service]
User=nobody
ExecStart=/bin/sh -c 'sleep 1; exec cat /opt/pipes/trace_0.pipe >/opt/job/got'
"""
ASKED = (
    "journalctl -u rankwatch --no-pager | grep asked.silent; echo got $(cat /opt/job/got); "
    "systemctl status --no-pager rank reader; journalctl -u rankwatch --no-pager | tail -5"
)
ASKS = """\
import socket
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16).close()
    print("netlink: yes")
except OSError as error:
    print("netlink:", error.strerror)
"""
LOOK = (
    "systemctl is-active rankwatch rank slow; /opt/rankwatch/bin/rankwatch status; cat /opt/asked; "
    "curl -s http://127.0.0.1:19028/metrics; journalctl -u rankwatch --no-pager | tail -20"
)
LOOK_SECONDS = 25
STILL_RANK = """\
[Service]
User=nobody
Environment=SLURM_JOB_ID=77 RANK=0 WORLD_SIZE=2
ExecStart=/usr/bin/python3 -B /opt/test/tests/e2e/idle_rank.py pt_nccl_watchdg
"""
TAKE = (
    "/opt/rankwatch/bin/rankwatch evidence take --job 77; "
    "curl -s http://127.0.0.1:19028/metrics | grep stack_dumps; journalctl -u rankwatch --no-pager | tail -5"
)

pytestmark = [full, pytest.mark.skipif(why_not_booted() is not None, reason=why_not_booted() or "")]


class Expected(NamedTuple):
    """Whether another user's rank is identified, its thread's wait is known, and netlink is available."""

    drop_ins: tuple[str, ...]
    knows_rank: bool
    netlink: bool


@pytest.mark.timeout(300)
@pytest.mark.parametrize("expected", [
    Expected((), knows_rank=False, netlink=False),
    Expected((OTHER_USERS,), knows_rank=True, netlink=False),
    Expected((HARDWARE,), knows_rank=False, netlink=True),
    Expected((OTHER_USERS, HARDWARE), knows_rank=True, netlink=True),
], ids=lambda expected: "+".join(expected.drop_ins) or "none")  # fmt: skip
def test_what_each_drop_in_gives(tmp_path: Path, expected: Expected) -> None:
    """Each drop-in gives the series that need its right; `status` names the missing rights."""
    with layered(tmp_path) as root:
        install(root, expected.drop_ins)
        test = root / "opt/test"
        (test / "tests/e2e").mkdir(parents=True)
        shutil.copytree(ROOT / "agent", test / "agent", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("held_rank.py", "slow_files.py"):
            shutil.copy(E2E / name, test / "tests/e2e")
        (root / "opt/asks.py").write_text(ASKS)
        (root / "opt/slow.py").write_text(SLOWS)
        # The agent's sandbox: the unit with another program.
        unit = (root / "etc/systemd/system/rankwatch.service").read_text()
        start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
        asks = unit.replace(start, "ExecStart=/opt/rankwatch/bin/python /opt/asks.py\nStandardOutput=file:/opt/asked")
        asks = asks.replace("Type=notify", "Type=oneshot").replace("Restart=on-failure", "Restart=no")
        beside = root / "etc/systemd/system/asks.service.d"
        shutil.copytree(root / "etc/systemd/system/rankwatch.service.d", beside)
        said = boot(root, {"rank.service": RANK, "slow.service": SLOW, "asks.service": asks}, LOOK, LOOK_SECONDS)
    assert said.splitlines()[:3] == ["active"] * 3, said
    assert ("netlink: yes" in said) == expected.netlink, said
    assert 'rankwatch_exporter_up{exporter="process"} 1' in said, said
    cpu = 'rankwatch_rank_cpu_seconds_total{job_id="77",part="rank",rank="0"}'
    assert (cpu in said) == expected.knows_rank, said
    assert ('wait="fuse"' in said) == expected.knows_rank, said
    for remedy in ("no right to read the environment of ", "unavailable: run rankwatch-setup"):
        assert (remedy in said) != expected.knows_rank, said
    assert "ERROR" not in said, said


@pytest.mark.timeout(300)
def test_stacks_want_no_right_more(tmp_path: Path) -> None:
    """With the drop-in for other users py-spy reads another user's rank in the shipped unit."""
    with layered(tmp_path) as root:
        install(root, (OTHER_USERS,))
        (root / "opt/test/tests/e2e").mkdir(parents=True)
        shutil.copy(E2E / "idle_rank.py", root / "opt/test/tests/e2e")
        shutil.copy(Path(sys.executable).with_name("py-spy"), root / "usr/local/bin")
        (root / "etc/rankwatch/rankwatch.yml").write_text("exporters: {stacks: {enabled: true}}\n")
        said = boot(root, {"rank.service": STILL_RANK}, TAKE, LOOK_SECONDS)
    counts = dict(re.findall(r'rank_stack_dumps_total\{result="(\w+)"\} (\d+)', said))
    assert {name for name, count in counts.items() if count != "0"} == {"read"}, said


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("made", "result"), [(PIPE, "not_permitted"), (ALLOWED_PIPE + PIPE, "asked")], ids=["plain", "allowed"]
)
def test_a_job_allows_to_be_asked_for_dumps(tmp_path: Path, made: str, result: str) -> None:
    """The shipped unit requests a dump from another user's rank if the pipe's directory permits it."""
    with layered(tmp_path) as root:
        install(root, (OTHER_USERS,))
        (root / "opt/pipe.py").write_text(made)
        test = root / "opt/test"
        test.mkdir()
        shutil.copytree(ROOT / "agent", test / "agent", ignore=shutil.ignore_patterns("__pycache__"))
        config = "exporters: {flight_recorder: {ask: true, silence_seconds: 1}}\n"
        (root / "etc/rankwatch/rankwatch.yml").write_text(config)
        said = boot(root, {"rank.service": PIPED_RANK, "reader.service": READER}, ASKED, LOOK_SECONDS)
    assert re.search(rf"asked silent ranks for dumps.*\b{result}\b.*1", said), said
    assert ("got 1" in said) == (result == "asked"), said
