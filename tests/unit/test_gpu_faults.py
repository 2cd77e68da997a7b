"""The meaning of GPU driver errors, and the errors that are shown."""

from pathlib import Path

import pytest

from agent.hardware import fault_table
from agent.hardware.fault_table import MAX_AGE_SECONDS, MAX_FAULTS, SAME_SECONDS, TimedFault, add, merged, recent
from agent.hardware.gpu_faults import MAX_WORD, DriverReport, Fault, judge
from agent.hardware.inventory import MAX_GPUS, Hardware
from agent.sdk.hardware import Gpu

CATALOG = Path(__file__).parents[1] / "data/xid/catalog.tsv"
HARDWARE = frozenset({"RESET_GPU", "RESTART_BM"})
PROGRAM = frozenset({"RESTART_APP", "IGNORE"})
PCI = "0000:3b:00.0"


def catalogue() -> list[tuple[str, str]]:
    """Return each Xid in use with NVIDIA's immediate action."""
    rows = [line.split("\t") for line in CATALOG.read_text().splitlines() if not line.startswith("#")]
    return [(code, action) for code, action in rows]


def xid(code: str, **details: str) -> Fault:
    """Return the fault of an Xid."""
    return judge("nvidia", DriverReport(code, **details)).fault


def test_every_xid_of_the_catalogue_has_a_meaning() -> None:
    """An Xid that needs a GPU reset or a node restart is a hardware fault; a needed program restart is not."""
    for code, action in catalogue():
        fault, check = judge("nvidia", DriverReport(code))
        assert fault.meaning != xid("9999").meaning, code
        if action in HARDWARE:
            assert (check, fault.role) == ("gpu_xid", "root"), code
        elif action in PROGRAM:
            assert check in {"", "gpu_xid_warning"}, code


MEANINGS = """
nvidia | 149 NETIR_LINK_EVT 14 fatal                | NVLink 14 down | link root gpu_xid | GPU reset required
nvidia | 149 NETIR_LINK_EVT/NETIR_LINK_DOWN 0 fatal | NVLink 0 down | link root gpu_xid | GPU reset required
nvidia | 149 NETIR - fatal                          | NVLink error (NETIR) | link root gpu_xid | GPU reset required
nvidia | 149 NETIR_BER_EVENT 3 nonfatal             | NVLink 3 makes bit errors | link root - | no action needed
nvidia | 149                                        | NVLink error (NETIR) | link root - | see the kernel's log
nvidia |145 RLW_RXPIPE 13 nonfatal| a peer over NVLink 13 does not answer | process consequence - | restart the program
nvidia | 145 RLW_REMAP 0 fatal      | NVLink 0 error (RLW) | link root gpu_xid | GPU reset required
nvidia | 45                         | clean-up after another error | process consequence - | see what came before
nvidia | 45 - - - 149               | clean-up after Xid 149 | process consequence - | see Xid 149
nvidia | 79 - - - 149               | clean-up after Xid 149 | process consequence - | see Xid 149
nvidia | 79                         | GPU has fallen off the bus | node root gpu_xid | node restart required
nvidia | 94                         | contained memory error | process root - | restart the program
nvidia | 95                         | uncontained memory error | gpu root gpu_xid | GPU reset required
nvidia | 31 - - - - GPCCLIENT_T1_0  | GPU memory page fault | process root - | check the program
nvidia | 13 repeated - - - GPC_4    | kernels of several users fail at GPC_4 | gpu root gpu_xid_warning | test the GPU
nvidia | 154 node_reboot            | recovery action: reboot the node | node consequence - | node restart required
nvidia | 9999                       | not known to this version | gpu root - | see the vendor's list
amd | reset                    | GPU is reset | gpu root gpu_reset
amd | reset - - failed         | GPU reset failed | node root gpu_reset
amd | ring_timeout gfx_0.0.0   | gfx_0.0.0 ring hangs | process root -
amd | uncorrectable umc        | uncorrectable errors (umc) | gpu root gpu_ecc_uncorrectable
amd | uncorrectable xgmi_wafl  | uncorrectable errors on XGMI | link root -
amd | poison                   | process read memory that had failed | process root -
amd | poison - - fatal         | memory that had failed was read | gpu root gpu_reset
amd | eviction                 | queues of a process could not be taken off the GPU | process root -
"""
"""Vendor; code, unit, link, severity, cause, position; meaning; affected component, role, check; action."""


def test_what_an_error_means() -> None:
    """Code, unit, severity and the preceding error give the meaning in plain words, with the link's number."""
    for line in MEANINGS.strip().splitlines():
        maker, cells, meaning, judged, *action = (cell.strip() for cell in line.split("|"))
        words = ["" if word == "-" else word for word in cells.split()]
        fault, check = judge("amd" if maker == "amd" else "nvidia", DriverReport(*words))
        assert [fault.meaning, fault.hurts, fault.role, check or "-"] == [meaning, *judged.split()], line
        assert action in ([], [fault.action]), line


def test_a_unit_is_bounded() -> None:
    """A unit's name is cut at its limit."""
    assert judge("nvidia", DriverReport("149", "X" * (MAX_WORD + 1))).fault.unit == "X" * MAX_WORD


def test_the_last_errors_of_a_gpu() -> None:
    """Above the limit, consequences are dropped first, then errors of a single process, then the oldest errors."""
    seen: list[TimedFault] = []
    for link in range(MAX_FAULTS - 2):
        seen = add(seen, xid("149", unit="NETIR_LINK_EVT", link=str(link), severity="fatal"), 100.0 + link)
    seen = add(seen, xid("45"), 500.0)
    seen = add(seen, xid("31"), 400.0)
    assert len(seen) == MAX_FAULTS
    for code, dropped in (("79", "45"), ("95", "31")):
        seen = add(seen, xid(code), 300.0)
        assert dropped not in {entry.fault.code for entry in seen}
    seen = add(seen, xid("48"), 300.0)
    assert len(seen) == MAX_FAULTS
    assert "0" not in {entry.fault.link for entry in seen}
    assert {"1", "2"} <= {entry.fault.link for entry in seen}


def test_errors_that_are_not_fatal_take_no_other_place() -> None:
    """A fatal error stays in the list after many nonfatal errors."""
    for first in (xid("149", unit="NETIR_LINK_EVT", link="14", severity="fatal"), xid("79")):
        seen = add([], first, 100.0)
        for link in range(MAX_FAULTS + 1):
            seen = add(seen, xid("146", unit="TLW_RX", link=str(link), severity="nonfatal"), 200.0 + link)
        assert len(seen) == MAX_FAULTS
        assert first in [entry.fault for entry in seen]


def test_old_errors_are_dropped() -> None:
    """An error is shown only if its time is at most MAX_AGE_SECONDS in the past or in the future."""
    seen = [TimedFault(xid("79"), 2 * MAX_AGE_SECONDS)]
    for times, expected in (((1.0, 3.0), seen), ((0.9, 3.1), [])):
        assert [recent(seen, time * MAX_AGE_SECONDS) for time in times] == [expected] * 2


@pytest.mark.parametrize(("later_seconds", "is_shown"), [(SAME_SECONDS, False), (SAME_SECONDS + 1, True)])
def test_a_kernel_line_replaces_nvmls_number(later_seconds: float, is_shown: bool) -> None:
    """NVML's error number is dropped if the kernel log had the same error of the GPU at most SAME_SECONDS before."""
    line = TimedFault(xid("149", unit="NETIR_LINK_EVT", link="14", severity="fatal"), 100.0)
    number = TimedFault(xid("149"), 100.0 + later_seconds)
    faults = merged([{PCI: [line]}, {PCI: [number], "0000:18:00.0": [number]}])
    assert (faults["0000:18:00.0"], set(faults[PCI])) == ([number], {line, number} if is_shown else {line})


def test_equal_errors_of_two_sources_are_one() -> None:
    """If two sources report an error of a GPU by number only, the error is shown once, with its last time."""
    assert merged([{PCI: [TimedFault(xid("79"), 8.0)]}, {PCI: [TimedFault(xid("79"), 3.0)]}]) == {
        PCI: [TimedFault(xid("79"), 8.0)]
    }


def test_errors_get_the_names_of_their_gpus() -> None:
    """An error has its GPU's index and UUID; if no known GPU has the PCI address, the error has only the address."""
    hardware = Hardware()
    hardware.of("nvml").observe_gpus([Gpu(3, "GPU-a", PCI)])
    hardware.of("kernel_log").observe_faults(
        {PCI: [TimedFault(xid("79"), 3.0)], "0000:99:00.0": [TimedFault(xid("94"), 4.0)]}
    )
    metric = fault_table.rows(hardware.faults())
    assert [(*labels[:4], value) for labels, value in zip(metric.labels, metric.values, strict=True)] == [
        ("3", "GPU-a", PCI, "79", 3.0),
        ("", "", "0000:99:00.0", "94", 4.0),
    ]
    hardware.withdraw(["nvml"])
    assert hardware.faults() == ()


def test_errors_are_bounded_and_stay_after_the_end() -> None:
    """GPUs and errors above their limits are dropped; errors stay after the exporter has stopped."""
    hardware = Hardware()
    source = hardware.of("kernel_log")
    source.observe_faults({f"{number:04x}:00:00.0": [TimedFault(xid("79"), 3.0)] for number in range(MAX_GPUS + 1)})
    assert len(hardware.faults()) == MAX_GPUS
    source.observe_faults({PCI: [TimedFault(xid("149", link=str(link)), 3.0) for link in range(MAX_FAULTS + 1)]})
    assert len(hardware.faults()) == MAX_FAULTS
    source.close()
    assert len(hardware.faults()) == MAX_FAULTS
