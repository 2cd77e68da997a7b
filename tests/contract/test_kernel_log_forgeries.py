"""Users' text in the kernel's own log lines makes no check fail, and clears no failure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from kernel_log_node import Node

from exporters.kernel_log.classify import categories, classify

COMM_BYTES = 15
"""The length of a process's name: TASK_COMM_LEN of linux/sched.h without the NUL."""
NETDEV_BYTES = 15
"""IFNAMSIZ of linux/if.h without the NUL; blanks, colons and slashes are refused (dev_valid_name)."""
LINES_A_LOOK = 20
"""Number of lines that fit into one read of a file (one read of the device returns only one record)."""
EXAMPLES = [text for category in categories().values() for text in category.examples]
FAULTS = (
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal",
    "mlx5_core 0000:19:00.0: poll_health:825:(pid 0): Fatal error 1 detected",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
    "mce: Uncorrected hardware memory error in user-access at 8a398a400",
    "nfs: server storage-01 not responding, still trying",
    "XFS (dm-0): Filesystem has been shut down due to log error (0x2).",
)


def forgeries(text: str) -> Iterator[str]:
    """Yield kernel lines that contain a user's ``text``."""
    comm = text[:COMM_BYTES]
    netdev = "".join(character for character in text if character not in " :/")[:NETDEV_BYTES]
    for filesystem in ("tmpfs", "nfs", "xfs", "ext4"):
        yield f"{filesystem}: Unknown parameter '{text}'"
        yield f"{filesystem}: Unknown parameter 'a\\x0a{text}'"
    yield f"tmpfs: Unknown parameter '{text}"  # the end of a cut line
    yield f"tmpfs: Bad value for '{text}'"
    yield f"overlayfs: failed to resolve '{text}': -2"
    crash = "segfault at 0 ip 0000000000000000 sp 00007ffd00000000 error 14 in"
    yield f"{comm}[99]: {crash} a.out[400000+1000]"
    yield f"a.out[99]: {crash} {text}[400000+1000] likely on CPU 1 (core 1, socket 0)"
    for end in range(1, COMM_BYTES + 1):  # the beginning as the process's name, the whole text as the file's name
        yield f"{text[:end]}[99]: {crash} {text}[400000+1000]"
        yield f"{text[:end]}[99]: {crash} {text[end:]}[400000+1000]"
    yield f"traps: {comm}[99] general protection fault ip:0 sp:7ffd00000000 error:0 in {text}[400000+1000]"
    yield f"oom_reaper: reaped process 99 ({comm}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
    yield f"[     99]  1000    99     1234      234    45056        0             0 {comm}"
    yield f"{comm} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
    yield f"{comm}: page allocation failure: order:0, mode:0x0(), nodemask=(null),cpuset={text},mems_allowed=0"
    yield f"{comm} (99): drop_caches: 3"
    yield f"mmap: {comm} (99): VmData 44494848 exceed data ulimit 43442176."
    yield f"process '{text}' started with executable stack"
    yield (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={text},mems_allowed=0,"
        f"oom_memcg=/user.slice/{text},task_memcg=/user.slice/{text},task={comm},pid=99,uid=1000"
    )
    yield f"Memory cgroup stats for /user.slice/{text}:"
    yield f"Tasks in /user.slice/{text} are going to be killed due to memory.oom.group set"
    yield f"cgroup: fork rejected by pids controller in /user.slice/{text}"
    yield f'audit: type=1400 audit(1.2:3): apparmor="DENIED" operation="open" name="{text}" pid=99 comm="{text}"'
    yield f"input: {text} as /devices/virtual/input/input9"
    yield f"usb 1-1: Product: {text}"
    yield f"NVRM: API mismatch: the client '{comm}' (pid 99)"
    yield f"amdgpu 0000:c1:00.0: amdgpu: Process information: process {comm} pid 99 thread {comm} pid 99"
    for name in (netdev, "NVRM", "nfs", "amdgpu", "nvidia-nvlink", "XFS", "MCE"):
        yield f"{name}: renamed from {netdev}"
        yield f"{name}: port 1({netdev}) entered disabled state"
        yield f"{name} (unregistering): (slave {netdev}): Releasing backup interface"
    yield f"{text}IN=lo OUT= MAC=00:00:00:00:00:00:00:00:00:00:00:00:08:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00"
    yield f"{text} IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00 PREC=0x00 TTL=64 ID=0 DF PROTO=ICMP"
    yield f"{text} IN=lo OUT= "
    yield f"{text} IN=br0 OUT= PHYSIN=eth0 MAC=00:00:00:00:00:00:00:00:00:00:00:00:08:00 SRC=::1 DST=::1 LEN=84"


def test_a_killed_process_is_its_kill_alone() -> None:
    """A killed process whose name has a driver's words counts as one OOM kill of its pid."""
    for text, scope in product(EXAMPLES, ("Out of memory", "Memory cgroup out of memory")):
        event = classify(f"{scope}: Killed process 99 ({text}) total-vm:1234kB, anon-rss:1234kB, UID:1000")
        assert (event.category, event.code, event.pci, event.pid, event.part) == ("oom_kill", "", "", 99, "")


async def test_forged_lines_neither_fail_nor_heal_anything(tmp_path: Path) -> None:
    """A driver's words in a user's text are no event: they neither fail nor clear a check."""
    node = Node(tmp_path / "kmsg")
    node.write(*FAULTS)
    await node.exporter.start(node.context)
    before, failed = await node.look_again(), node.failed()
    assert len(failed) == len(FAULTS)
    lines = [line for text in EXAMPLES for line in forgeries(text)]
    lines += [line for category in categories().values() for line in category.forged]
    assert [line for line in lines if classify(line) is not None] == []
    for start in range(0, len(lines), LINES_A_LOOK):
        node.write(*lines[start : start + LINES_A_LOOK])
        after = await node.look_again()
    assert {key: value for key, value in after.items() if before.get(key) != value} == {}
    assert node.failed() == failed
    await node.exporter.drain()


@pytest.mark.parametrize("flags", ["c", "+", "c,caller=T99"])
async def test_a_fragment_is_no_line(tmp_path: Path, flags: str) -> None:
    """A record with the flag of a continued line is no event, unless its text begins with `NVRM: `, because NVIDIA's
    driver also sets this flag on whole lines."""
    node = Node(tmp_path / "kmsg")
    others = [text for text in EXAMPLES if not text.startswith("NVRM: ")]
    node.put(node.log, "".join(f"4,{number},1,{flags};{text}\n" for number, text in enumerate(others)))
    assert not any(value for (name, *_), value in (await node.look()).items() if name == "kernel_events_total")
    assert node.failed() == set()


@pytest.mark.parametrize(
    "records",
    [
        [f"4,1,1,c;{FAULTS[0]},mems_allowed=0,global_oom,task=a.out,pid=9,uid=1000\n"],
        [f"4,1,1,c;{FAULTS[0]}\n4,2,1,-;eth0: link up\n4,3,1,c;,mems_allowed=0,global_oom\n"],
        [f"4,1,1,c;{FAULTS[0]}\n", "4,2,1,-;eth0: link up\n4,3,1,c,caller=T9;,mems_allowed=0,global_oom\n"],
    ],
    ids=["in one record", "interrupted", "interrupted between two looks"],
)
async def test_a_cpuset_with_the_name_of_an_error(tmp_path: Path, records: list[str]) -> None:
    """The name of a user's cpuset is no line of NVIDIA's driver, because ",mems_allowed=" follows the name."""
    node = Node(tmp_path / "kmsg")
    node.write("eth0: link down")
    async with node.running():
        for written in ["", *records, ""]:
            node.put(node.log, written, "a")
            series = await node.look_again()
    assert not any(value for (name, *_), value in series.items() if name == "kernel_events_total")
    assert node.failed() == set()


@pytest.mark.parametrize("facility", [1, 3, 23])
async def test_what_programs_write_is_not_the_kernels(tmp_path: Path, facility: int) -> None:
    """A program's line in the log is no event, whatever its facility."""
    node = Node(tmp_path / "kmsg")
    node.put(node.log, "".join(f"{8 * facility + 4},{n},1,-;{text}\n" for n, text in enumerate(EXAMPLES)))
    assert not any(value for (name, *_), value in (await node.look()).items() if name == "kernel_events_total")
    assert node.failed() == set()
