"""The CPUs of a process, and their NUMA nodes."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent.system.process_lines import MAX_CPU_LIST, parse_status
from exporters.process.usage.waits import MAX_CPUS, nodes_of, parse_cpus, read_nodes


@pytest.mark.parametrize(("text", "expected"), [
    ("0-3,8", {0, 1, 2, 3, 8}),
    ("5", {5}),
    (f"{MAX_CPUS - 1}-{MAX_CPUS + 7}", {MAX_CPUS - 1}),
    (f"{MAX_CPUS}", set()),
    ("", set()),
    ("3-", set()),
    ("all", set()),
])  # fmt: skip
def test_lists_of_cpus(text: str, expected: set[int]) -> None:
    """A list gives CPUs up to the greatest number that a CPU can have; any other text gives none."""
    assert parse_cpus(text) == expected


@given(st.text(max_size=40))
def test_any_text_is_read(text: str) -> None:
    """No text raises an error."""
    parse_cpus(text)


def test_nodes(tmp_path: Path) -> None:
    """CPUs give the memory nodes that have some of them; without the kernel's folder none."""
    for node, cpus in ((0, "0-15,32-47"), (1, "16-31"), (10, "")):
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
        (tmp_path / f"devices/system/node/node{node}/cpulist").write_text(f"{cpus}\n")
    (tmp_path / "devices/system/node/online").write_text("0-1\n")
    nodes = read_nodes(tmp_path)
    assert [nodes_of(parse_cpus(text), nodes) for text in ("0-3", "15-16", "64", "")] == ["0", "0,1", "", ""]
    assert read_nodes(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(("length", "is_shown"), [(MAX_CPU_LIST, True), (MAX_CPU_LIST + 1, False)])
def test_a_list_too_long_for_a_label_is_left_out(length: int, is_shown: bool) -> None:
    """A list longer than MAX_CPU_LIST gives no CPUs."""
    text = Path("/proc/self/status").read_text()
    own = next(line for line in text.splitlines() if line.startswith("Cpus_allowed_list"))
    found = parse_status(text.replace(own, f"Cpus_allowed_list:\t{'1' * length}"))
    assert found is not None
    assert bool(found.cpus) == is_shown
