"""What the lines of Xids say, and what users can make them say."""

from pathlib import Path

from hypothesis import given, strategies as st

from agent.sdk.hardware import Told
from exporters.kernel_log.classify import classify, fails, judged
from exporters.kernel_log.gpu_errors import read_xid

DATA = Path(__file__).parents[1] / "data/xid/lines.tsv"
LINES = [line.split("\t") for line in DATA.read_text().splitlines() if not line.startswith("#")]
TAIL = "(0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
DOWN = f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 {TAIL}"
LINK_14 = Told("149", "NETIR_LINK_EVT", "14", "fatal")


def test_real_lines() -> None:
    """Code, unit, link, severity, who is hurt, role and check are those of each real line."""
    for *expected, line in LINES:
        event = classify(line)
        assert event is not None, line
        error = judged(event)
        assert error is not None, line
        fault = error.fault
        found = [fault.code, fault.unit, fault.link, fault.severity, fault.hurts, fault.role, error.check]
        assert [each or "-" for each in found] == expected, line
        assert fails(event, 7000.0) == error.check, line


ACTION = ", GPU recovery action changed from 0x0 (None) to "
WARP = ", pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 2, SM 0): Out Of Range"
MMU = ", pid=17, name=a, Ch 0, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_5 faulted @ 0"


def test_what_a_line_says() -> None:
    """With a process or without, of any name; an action that was taken is no error."""
    cases = [
        ("149", f", pid=11436, name=cache_mgr_main, {DOWN}", LINK_14),
        ("149", f", pid='<unknown>', name=<unknown>, {DOWN}", LINK_14),
        ("149", f", pid=17, {DOWN}", LINK_14),
        ("45", ", pid=17, name=a, Ch 00000001", Told("45")),
        ("45", ", pid=17, name=a, Ch 00000001 caused by previous Xid 149", Told("45", cause="149")),
        ("43", ", pid=17, name=a, Ch 0000000b caused by previous Xid 145", Told("43", cause="145")),
        ("13", WARP, Told("13", place="GPC 7, TPC 2")),
        ("13", ", pid=17, name=a, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24", Told("13")),
        ("31", MMU, Told("31", place="GPC3 GPCCLIENT_T1_5")),
        ("154", f", pid=17, name=a{ACTION}0x2 (Node Reboot Required)", Told("154", "node_reboot")),
        ("154", f"{ACTION}0x5 (Recover IMEX)", Told("154", "recover_imex_domain")),
        ("154", f"{ACTION}0x7 (System Reboot)", Told("154", "system_reboot")),
        ("154", f"{ACTION}0x8 (News)", Told("154")),
        ("154", ACTION.replace("0x0 (None)", "0x1 (GPU Reset Required)") + "0x0 (None)", None),
    ]
    for code, rest, told in cases:
        assert read_xid(code, rest) == told, rest


NAMES = [
    "x, Fatal Link 3", "NETIR Fatal XC0", "A Fatal XC0 i0 ", ", AB Fatal XC0 ", "x, NETIR_LINK_E", "x, Ch 00000001 ",
    "Ch 1 caused by ", "149, pid=1, nam", "NVLink: fatal e", "a\\x5c, \\x0aFatal", "<unknown>", ",", " ",
]  # fmt: skip


def test_a_process_cannot_put_words_into_the_drivers_mouth() -> None:
    """Whatever 15 bytes a process bears as its name, its line says what the driver wrote."""
    for name in NAMES:
        process, nonfatal = f", pid=17, name={name}, ", f"SAW_MVB Nonfatal XC0 i0 Link 00 {TAIL}"
        assert read_xid("149", process + DOWN) == LINK_14, name
        assert read_xid("144", process + nonfatal) == Told("144", "SAW_MVB", "0", "nonfatal"), name
        for code, text in (("45", "Ch 00000001"), ("74", "NVLink: error"), ("149", "something else")):
            assert read_xid(code, process + text) == Told(code), name


def test_a_cut_line_says_nothing_that_is_not_whole() -> None:
    """Cut anywhere, a line names the severity and link that it has whole, or none."""
    for length in range(len(f", {DOWN}") + 1):
        told = read_xid("149", f", {DOWN}"[:length])
        assert told in {Told("149"), Told("149", "NETIR_LINK_EVT", "", "fatal"), LINK_14}


def test_a_name_is_no_longer_than_a_process_has() -> None:
    """Text after 15 bytes, each of one character or of four, is the driver's; a longer name is none."""
    for name, told in (("x" * 15, LINK_14), ("\\xc3" * 15, LINK_14), ("x" * 16, Told("149"))):
        assert read_xid("149", f", pid=17, name={name}, {DOWN}") == told


def as_the_kernel_shows(name: bytes) -> str:
    """A process's name in /dev/kmsg: what is not printable, and the backslash, in four characters."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in name)


DRIVERS_WORDS = st.sampled_from(
    [", ", "Fatal", "XC0 i0 ", "Link 3 (", "AB Fatal XC0", "NETIR", "pid=1", "Ch 1 caused", "'"]
)


@given(st.one_of(st.binary(min_size=1), st.lists(DRIVERS_WORDS, min_size=1).map("".join).map(str.encode)))
def test_any_name_leaves_the_drivers_words_alone(name: bytes) -> None:
    """Whatever a process calls itself, its Xid's line says what the driver wrote."""
    shown = as_the_kernel_shows(name.replace(b"\0", b"")[:15] or b"x")
    line = f"NVRM: Xid (PCI:0000:3b:00): 149, pid=17, name={shown}, {DOWN}"
    event = classify(line)
    assert event is not None
    assert (event.pid, event.gpu_error) == (17, LINK_14)
