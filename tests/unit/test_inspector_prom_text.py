"""The parser of one file in Inspector's Prometheus mode."""

from __future__ import annotations

import pytest

from exporters.inspector_prom import text as module
from exporters.inspector_prom.text import MAX_COUNT, MeansKind, MeansRow, parse

KEY = MeansKind("", "tp", "4", "1", "AllReduce", "8-9MB", "RING_SIMPLE")


def line(value: str = "100", metric: str = "nccl_bus_bandwidth_gbs", **changed: str) -> str:
    """Return a line of NCCL 2.30; ``changed`` replaces labels, or removes those that are empty."""
    labels = {
        "version": "v5.1", "slurm_job_id": "4242", "comm_name": "tp", "n_nodes": "1", "nranks": "4",
        "collective": "AllReduce", "message_size": "8-9MB", "algo_proto": "RING_SIMPLE",
    } | changed  # fmt: skip
    written = ",".join(f'{name}="{label}"' for name, label in labels.items() if label)
    return f"{metric}{{{written}}} {value}\n"


def read(*lines: str) -> tuple[dict[MeansKind, MeansRow], dict[str, int]]:
    """Return the rows of these lines, and the counts of skipped lines."""
    means = parse("".join(lines).encode())
    return means.rows, dict(means.skipped)


@pytest.mark.parametrize("changed", [
    {"nranks": "0"},
    {"nranks": "12345678"},
    {"n_nodes": "-1"},
    {"n_nodes": "", "nranks": ""},
    {"collective": "Invalid"},
    {"collective": ""},
    {"message_size": "8-9PB"},
    {"message_size": "123456789-9MB"},
    {"algo_proto": "x" * 33},
    {"algo_proto": "RING-LL"},
    {"comm_id": "0x12345678901234567"},
    {"comm_name": "n" * 256},
    {"comm_name": "n" * 900 + "\u2603" * 100},
])  # fmt: skip
def test_labels_that_make_no_sense(changed: dict[str, str]) -> None:
    """A label that is too long or of an unknown kind makes only its own line malformed."""
    assert read(line(**changed), line()) == ({KEY: MeansRow(100e9)}, {"malformed": 1})


def test_operations_and_names() -> None:
    """All operations of the plugin are read, with names of up to 255 arbitrary characters."""
    names = "AllReduce AllGather AllGatherV ReduceScatter Broadcast Reduce SendRecv All2All"
    rows, skipped = read(*(line(collective=name) for name in names.split()), line(collective="", p2p_operation="Send"))
    assert (len(rows), skipped) == (8 + 1, {})
    assert next(iter(read(line(comm_name="\u2603" * 255))[0])).comm_name == "\u2603" * 255


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "x", "100001", "1e99999"])
def test_bandwidths_that_cannot_be(value: str) -> None:
    """A bandwidth that is no number, not positive or above any wire's is dropped; the time stays."""
    time = line("5", "nccl_collective_exec_time_microseconds")
    assert read(line(value), time) == ({KEY: MeansRow(None, 5e-6)}, {"value": 1})


def test_times_that_cannot_be() -> None:
    """A time that underflowed when the clock was set back is dropped; the maximum is a million seconds."""
    time = "nccl_p2p_exec_time_microseconds"
    assert read(line("1.84467e+19", time)) == ({}, {"value": 1})
    assert read(line("1e12", time)) == ({KEY: MeansRow(None, 1e6)}, {})
    assert read(line("100000")) == ({KEY: MeansRow(100e12)}, {})


def test_other_lines() -> None:
    """Comments, empty lines and the plugin's other metrics are skipped; any other line is malformed."""
    odd = ("# HELP x y\n", "\n", 'nccl_collective_algobw_gbs{gpu="GPU0"} 7\n', "node_load 5\n", "nccl_x 5\n")
    assert read(*odd, line(cluster="c")) == ({KEY: MeansRow(100e9)}, {"malformed": 2})


def test_the_plugins_counters() -> None:
    """A duplicate counter, or a value above a float's exact integers, is dropped."""
    gpu = 'version="v5.1",gpu="GPU0"'
    counts = {"collectives": MAX_COUNT, "collectives_dropped": 0, "p2p": 5, "p2p_dropped": MAX_COUNT + 2}
    lines = [f"nccl_{name}_total{{{gpu}}} {value}\n" for name, value in (*counts.items(), ("p2p", 5))]
    means = parse("".join(lines).encode())
    assert means.counters == {"collectives": MAX_COUNT, "collectives_dropped": 0}
    assert means.skipped == {"twice": 1, "value": 1}


@pytest.mark.parametrize("labels", ["", "=", 'a="1', 'x,a="1"', 'a="1"x', 'a="1",a="2"', 'comm_name="",nranks="4"'])
def test_labels_that_are_none(labels: str) -> None:
    """Text that is no list of labels is malformed."""
    assert read(f"nccl_bus_bandwidth_gbs{{{labels}}} 5\n") == ({}, {"malformed": 1})


def test_bounds_of_lines_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above its limit is skipped; a file above its limit is read up to its last whole line within the limit."""
    monkeypatch.setattr(module, "MAX_LINE_BYTES", len(line()) - 1)
    assert read(line()) == ({KEY: MeansRow(100e9)}, {})
    assert read(line("1000")) == ({}, {"line_size": 1})
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 2 * len(line()))
    both = {kind: MeansRow(100e9) for kind in (KEY, KEY._replace(ranks="5"))}
    assert read(line(), line(nranks="5")) == (both, {})
    assert read(line(), line(nranks="5"), "\n") == (both, {"file_size": 1})
    assert read(line(), "\n", line(nranks="5")) == ({KEY: MeansRow(100e9)}, {"file_size": 1, "cut": 1})


def test_sizes() -> None:
    """Rows are in descending order of the message size that their label means."""
    sizes = ["0B", "1-2KB", "1023-1024B", "4.00MB", "1-2TB", "4-5MB"]
    rows, skipped = read(*(line(message_size=size) for size in sizes))
    assert ([key.size_bytes() for key in rows], skipped) == ([1 << 40, 4 << 20, 4 << 20, 1024, 1023, 0], {})
