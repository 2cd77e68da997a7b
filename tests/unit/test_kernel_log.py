"""The kernel log: records, reads, and the meaning of lines."""

import errno
import os
from pathlib import Path

import pytest

from agent.hardware.ledger import CHECKS
from agent.sdk.exporter import FailureCounter, Logger, Roots
from agent.sdk.hardware import DriverReport
from exporters.kernel_log import lines, mounts as module, reader as reader_module
from exporters.kernel_log.classify import categories, classify, fails, judged, patterns
from exporters.kernel_log.gpu_errors import read_xid
from exporters.kernel_log.lines import MAX_TEXT, KernelLines, KernelRecord, parse_records
from exporters.kernel_log.mounts import mounted_devices, read_mounted
from exporters.kernel_log.reader import KernelLog

NVSWITCH = "nvswitch_fatal"
DATA = Path(__file__).parents[1] / "data"


def test_every_category_has_examples_forgeries_and_known_checks() -> None:
    """Each example has its category and hardware, each pattern has an example, and no forged line is an event."""
    for name, entry in categories().items():
        assert {*([entry.check] if entry.check else ()), *entry.heals} <= set(CHECKS)
        assert all(any(pattern.match(text) for text in entry.examples) for pattern in patterns(name)), name
        for text in entry.examples:
            event = classify(text)
            assert event is not None, text
            assert (event.category, bool(event.pci) or entry.subject == "node") == (name, True), text
        words = [entry.contains] if isinstance(entry.contains, str) else entry.contains
        assert entry.forged, name
        for text in entry.forged:
            assert any(word.lower() in text.lower() for word in words), text
            assert classify(text) is None, text


def test_a_name_of_a_process_is_bounded() -> None:
    """A process name has up to 15 bytes, shown as one or four characters each; a longer name is no process name."""
    for comm, is_event in (("x" * 15, True), ("\\xc3" * 15, True), ("\\xc3" * 15 + "x", False)):
        assert (classify(f"INFO: task {comm}:17 blocked for more than 122 seconds.") is not None) == is_event


def test_what_a_line_names() -> None:
    """A line gives the code, PCI address, pid, component and the check that it fails."""
    for text, code, pci, pid, part, check in [
        ("NVRM: Xid (PCI:0000:3B:00): 79, pid=17, name=x", "79", "0000:3b:00.0", 17, "", "gpu_xid"),
        ("NVRM: Xid (PCI:00010000:3b:00.0): 48, pid='17', name=x", "48", "10000:3b:00.0", 17, "", "gpu_xid"),
        ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Warp Exception", "13", "0000:3b:00.0", 0, "", ""),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12", "23001", "0000:59:00.0", 0, "", NVSWITCH),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 20009, Non-fatal, Link 28", "20009", "0000:59:00.0", 0, "", ""),
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "", "0000:c1:00.0", 0, "", "gpu_reset"),
        ("amdgpu 0000:7c:00.0: GPU reset begin!. Source:  4", "", "0000:7c:00.0", 0, "", "gpu_reset"),
        ("amdgpu 0000:7c:00.0: Failed to evict process queues", "", "0000:7c:00.0", 0, "", ""),
        ("nfs: server a.b not responding, still trying", "", "", 0, "a.b", "nfs_not_responding"),
        ("nfs: server a.b not responding, timed out", "", "", 0, "", ""),
        ("nfs: server a.b OK", "", "", 0, "a.b", ""),
        ("BTRFS info (device dm-3 state EA): forced readonly", "", "", 0, "dm-3", "filesystem_read_only"),
        ("Memory failure: 0x1a: Killing a b:17 due to hardware memory corruption", "", "", 17, "", "machine_check"),
        ("MCE: Killing a:17 due to hardware memory corruption fault at 46", "", "", 17, "", ""),
        ("{2}[Hardware Error]: event severity: recoverable", "", "", 0, "", ""),
        ("{2}[Hardware Error]: event severity: fatal", "", "", 0, "", "machine_check"),
        ("efa 0000:00:06.0 efa_0: Wait for completion (polling) timeout", "", "0000:00:06.0", 0, "", "nic_fatal"),
        ("traps: a[17] general protection fault ip:7f sp:7f error:0 in libnccl.so.2[7f+8]", "", "", 17, "", ""),
    ]:
        event = classify(text)
        assert event is not None
        assert (event[1:5], fails(event, 7000.0)) == ((code, pci, pid, part), check)


def test_a_process_cannot_hide_its_lines() -> None:
    """An Xid counts even if its process's name looks like the beginning of a quoted line."""
    for name in ["IN= OUT= ", "IN= OUT= SRC=1", "IN= OUT= MAC=00", "audit: ", "x: Bad value fo"]:
        event = classify(f"NVRM: Xid (PCI:0000:3b:00): 48, pid=17, name={name}, Ch 00000008")
        assert event is not None
        assert (event.category, event.pid) == ("gpu_xid", 17)


def test_machine_checks_of_the_boot_before_fail_nothing() -> None:
    """Machine checks in the first two minutes after a boot belong to the previous boot; later ones do not."""
    event = classify("[Hardware Error]: System Fatal error.")
    assert event is not None
    assert (fails(event, 119.9), fails(event, 120.0)) == ("", "machine_check")


@pytest.mark.parametrize("text", ["", *(DATA / "kernel_log/no_event.txt").read_text().splitlines()])
def test_what_is_well_is_no_event(text: str) -> None:
    """A line that has a category's word with another meaning is no event."""
    assert classify(text) is None


def test_records_and_what_are_none() -> None:
    """A record gives number, seconds, text and origin; dictionary and torn lines are skipped, odd bytes replaced."""
    read = b"4,7,1500000,-,caller=T1;a\xff;b\n KEY=1\nnonsense\n12,8,1,-;user's\n30,99\n4,9,2,c;rest\n"
    assert parse_records(read) == [
        KernelRecord(7, 1.5, "a\ufffd;b", "kernel"),
        KernelRecord(8, 1e-6, "user's", "user"),
        KernelRecord(9, 2e-6, "rest", "fragment"),
    ]
    assert len(parse_records(b"4,7,1,-;" + b"x" * (MAX_TEXT + 1))[0].text) == MAX_TEXT


def opened_log(path: Path, last: int = -1) -> KernelLog:
    """Return the log at a path, read up to the record ``last``."""
    return KernelLog(path, last, Roots(), FailureCounter(Logger("kernel_log")))


def test_what_was_overwritten_is_counted(tmp_path: Path) -> None:
    """Skipped record numbers count as lost, except before the first record."""
    log = tmp_path / "kmsg"
    log.write_text("4,5,1,-;a\n4,9,1,-;b\n")
    for last, lost, records in ((-1, 3, 2), (3, 4, 2), (9, 0, 0)):
        opened = opened_log(log, last)
        assert (len(opened.read()[0]), opened.lost.total()) == (records, lost)
        assert [record.text for record in opened.last_records] == ["a", "b"]


def test_an_overrun_and_other_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an overrun the log goes on with its oldest record; any other error is raised, but loses no record."""
    answers: list[bytes | int] = [b"4,5,1,-;a\n", errno.EPIPE, b"4,8,1,-;b\n", errno.EIO, errno.EIO]

    def read(_fd: int, _count: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    (tmp_path / "kmsg").write_text("")
    log = opened_log(tmp_path / "kmsg")
    monkeypatch.setattr(os, "read", read)
    assert ([record.sequence for record in log.read()[0]], log.lost.total()) == ([5, 8], 2)
    with pytest.raises(OSError, match="Input/output error"):
        log.read()


def test_a_flood_is_read_over_several_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read returns at most MAX_RECORDS records; only a read that reaches the end of the log says so."""
    monkeypatch.setattr(reader_module, "MAX_RECORDS", 1)
    monkeypatch.setattr(reader_module, "MAX_RECORD_BYTES", 10)
    (tmp_path / "kmsg").write_text("4,5,1,-;a\n4,6,1,-;b\n")
    log = opened_log(tmp_path / "kmsg")
    for sequences, is_all in (([5], False), ([6], False), ([], True)):
        records, at_end = log.read()
        assert ([record.sequence for record in records], at_end) == (sequences, is_all)
    log.close()


MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard,errors=remount-ro
31 22 8:17 / /data rw,relatime shared:2 master:7 - ext4 /dev/sdb1 ro,errors=remount-ro
32 22 253:0 / /scratch ro,relatime - xfs /dev/mapper/vg-scratch rw,attr2
33 22 0:45 /home /home rw,relatime - btrfs /dev/mapper/vg-home ro,space_cache=v2
34 22 8:33 / /new rw,relatime - ext4 /dev/sdc1 rw,emergency_ro
35 22 8:17 / /again\\040here rw,relatime - ext4 /dev/sdb1 rw
36 22 0:99 / /home/u rw - fuse.x /dev/sdz9 ro,user_id=7
torn line
"""


def test_what_is_mounted_and_how() -> None:
    """A file system's own options decide if it is read-only; a device's path finds btrfs, but no FUSE mount."""
    names = {"sda1": ("8:1", ""), "sdb1": ("8:17", ""), "dm-0": ("253:0", "vg-scratch")}
    names |= {"dm-1": ("253:1", "vg-home"), "sdc1": ("8:33", ""), "sdz9": ("", "")}
    devices = {name: (number, name, other) for name, (number, other) in names.items()}
    read_only = {"sda1": False, "sdb1": True, "dm-0": False, "dm-1": True, "sdc1": True}
    assert mounted_devices(MOUNTINFO, devices) == read_only


def test_the_nodes_mounts_are_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounts of init (pid 1) are read, else the agent's own; without both, or if mountinfo is too large, None."""
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "run")
    assert read_mounted(roots, ["dm-1"]) is None
    named = roots.sys / "class/block/dm-1/dm/name"
    named.parent.mkdir(parents=True)
    named.write_text("vg-home\n")
    (roots.proc / "self").mkdir(parents=True)
    (roots.proc / "self/mountinfo").write_text(MOUNTINFO)
    assert read_mounted(roots, ["dm-1", "sdb1"]) == {"dm-1": True, "sdb1": True}
    (roots.proc / "1").mkdir()
    (roots.proc / "1/mountinfo").write_text("")
    assert read_mounted(roots, ["dm-1"]) == {}
    (roots.proc / "1/mountinfo").write_text(MOUNTINFO)
    (roots.proc / "self/mountinfo").unlink()
    monkeypatch.setattr(module, "MAX_BYTES", len(MOUNTINFO))
    assert read_mounted(roots, ["sdb1"]) == {"sdb1": True}
    monkeypatch.setattr(module, "MAX_BYTES", len(MOUNTINFO) - 1)
    assert read_mounted(roots, ["sdb1"]) is None


LINES = [line.split("\t") for line in (DATA / "xid/lines.tsv").read_text().splitlines() if not line.startswith("#")]
TAIL = "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
DOWN = f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 {TAIL}"
LINK_14 = DriverReport("149", "NETIR_LINK_EVT", "14", "fatal")


def test_real_lines() -> None:
    """Each recorded line gives code, unit, link, severity, victim, role and check."""
    for *expected, line in LINES:
        event = classify(line)
        assert event is not None, line
        error = judged(event)
        assert error is not None, line
        fault = error.fault
        values = [fault.code, fault.unit, fault.link, fault.severity, fault.hurts, fault.role, error.check]
        assert [entry or "-" for entry in values] == expected, line
        assert fails(event, 7000.0) == error.check, line


ACTION = ", GPU recovery action changed from 0x0 (None) to "
WARP_REST = ", pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 2, SM 0): Out Of Range"
MMU = ", pid=17, name=a, Ch 0, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_5 faulted @ 0"


def test_what_a_line_says() -> None:
    """An Xid line means the same with any process name or without one; a completed recovery action is no error."""
    cases = [
        ("149", f", pid=11436, name=cache_mgr_main, {DOWN}", LINK_14),
        ("149", f", pid='<unknown>', name=<unknown>, {DOWN}", LINK_14),
        ("149", f", pid=17, {DOWN}", LINK_14),
        ("45", ", pid=17, name=a, Ch 00000001", DriverReport("45")),
        ("45", ", pid=17, name=a, Ch 00000001 caused by previous Xid 149", DriverReport("45", cause="149")),
        ("43", ", pid=17, name=a, Ch 0000000b caused by previous Xid 145", DriverReport("43", cause="145")),
        ("13", WARP_REST, DriverReport("13", place="GPC 7, TPC 2")),
        ("13", ", pid=17, name=a, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24", DriverReport("13")),
        ("31", MMU, DriverReport("31", place="GPC3 GPCCLIENT_T1_5")),
        ("154", f", pid=17, name=a{ACTION}0x2 (Node Reboot Required)", DriverReport("154", "node_reboot")),
        ("154", f"{ACTION}0x5 (Recover IMEX)", DriverReport("154", "recover_imex_domain")),
        ("154", f"{ACTION}0x7 (System Reboot)", DriverReport("154", "system_reboot")),
        ("154", f"{ACTION}0x8 (News)", DriverReport("154")),
        ("154", ACTION.replace("0x0 (None)", "0x1 (GPU Reset Required)") + "0x0 (None)", None),
    ]
    for code, rest, meaning in cases:
        assert read_xid(code, rest) == meaning, rest


NAMES = [
    "x, Fatal Link 3", "NETIR Fatal XC0", "A Fatal XC0 i0 ", ", AB Fatal XC0 ", "x, NETIR_LINK_E", "x, Ch 00000001 ",
    "Ch 1 caused by ", "149, pid=1, nam", "NVLink: fatal e", "a\\x5c, \\x0aFatal", "<unknown>", ",", " ",
]  # fmt: skip


def test_a_process_cannot_put_words_into_the_drivers_mouth() -> None:
    """Any 15 bytes as a process's name leave its Xid line's meaning unchanged."""
    for name in NAMES:
        process, nonfatal = f", pid=17, name={name}, ", f"SAW_MVB Nonfatal XC0 i0 Link 00 {TAIL}"
        assert read_xid("149", process + DOWN) == LINK_14, name
        assert read_xid("144", process + nonfatal) == DriverReport("144", "SAW_MVB", "0", "nonfatal"), name
        for code, text in (("45", "Ch 00000001"), ("74", "NVLink: error"), ("149", "something else")):
            assert read_xid(code, process + text) == DriverReport(code), name


def test_a_cut_line_says_nothing_that_is_not_whole() -> None:
    """A line that is cut anywhere gives only the severity and link that are complete."""
    for length in range(len(f", {DOWN}") + 1):
        meaning = read_xid("149", f", {DOWN}"[:length])
        assert meaning in {DriverReport("149"), DriverReport("149", "NETIR_LINK_EVT", "", "fatal"), LINK_14}


def test_a_name_is_no_longer_than_a_process_has() -> None:
    """Text after a name of 15 bytes belongs to the driver; a longer name is invalid."""
    for name, meaning in (("x" * 15, LINK_14), ("\\xc3" * 15, LINK_14), ("x" * 16, DriverReport("149"))):
        assert read_xid("149", f", pid=17, name={name}, {DOWN}") == meaning


def test_lines_beyond_the_limit_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of waiting NVIDIA driver lines, the oldest line waits no longer."""
    monkeypatch.setattr(lines, "MAX_WAITING", 2)
    kernel = KernelLines()
    drivers = [KernelRecord(number, 1.0, "NVRM: Xid", "fragment") for number in range(3)]
    assert kernel.select(drivers, 2) == (drivers[:1], 0)
    assert kernel.settled == 0
    assert kernel.select([], 2) == (drivers[1:], 0)
    assert kernel.settled == 2


def test_reads_ahead_of_a_look_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MAX_AHEAD reads for bundles precede a look, and the look has the events of these reads."""
    monkeypatch.setattr(reader_module, "MAX_AHEAD", 2)
    log = Endless(tmp_path, -1, Roots(), FailureCounter(Logger("kernel_log")))
    for _ in range(3):
        log.catch_up()
    assert log.last_records[-1].sequence == 1
    assert [group.times for group in log.look((), is_backlog=False).groups] == [3]


def test_a_failed_read_loses_nothing_that_was_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of records that a bundle read appear in the first look whose own read succeeds."""
    log = Endless(tmp_path, -1, Roots(), FailureCounter(Logger("kernel_log")))
    log.catch_up()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="broken"):
        patch.setattr(log, "read", broken)
        log.look((), is_backlog=False)
    assert [group.times for group in log.look((), is_backlog=False).groups] == [2]


def broken() -> None:
    """Raise the error of a failing device."""
    raise OSError("broken")


class Endless(KernelLog):
    """A log that has a new record at each read."""

    def read(self) -> tuple[list[KernelRecord], bool]:
        text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
        record = KernelRecord(self.last + 1, 1.0, text, "kernel")
        assert self._is_new(record)
        return [record], False


def test_lines_after_a_line_that_waits_wait_too() -> None:
    """Lines after a waiting line also wait, so that an agent that restarts before the next look reads both again."""
    kernel = KernelLines()
    records = [KernelRecord(0, 1.0, "first", "kernel"), KernelRecord(1, 1.0, "NVRM: Xid", "fragment")]
    records.append(KernelRecord(2, 1.0, "after", "kernel"))
    assert kernel.select(records, 2) == (records[:1], 0)
    assert kernel.settled == 0
    assert kernel.select([], 2) == (records[1:], 0)


def test_a_rest_makes_only_recent_lines_doubtful() -> None:
    """The rest of a cut line makes the driver's lines of the last second doubtful: they are counted, not used."""
    kernel = KernelLines()
    early, late = KernelRecord(0, 1.0, "NVRM: Xid", "fragment"), KernelRecord(1, 7.5, "NVRM: Xid", "fragment")
    odd = KernelRecord(2, 7.6, "NVRM: Xid, name=,mems_allowed=", "fragment")
    rest = KernelRecord(3, 8.0, ",mems_allowed=0", "fragment")
    assert kernel.select([early, late, odd], 2) == ([], 1)
    assert kernel.select([rest], 3) == ([early], 1)
