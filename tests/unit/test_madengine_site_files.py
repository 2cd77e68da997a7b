"""madengine: tables of several results, manifests, and how a site's files are found and read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from test_madengine import MadNode

from agent.system import whole_file
from exporters.madengine import results, site_files
from exporters.madengine.exporter import MadengineConfig
from exporters.madengine.results import PlacedTable, ResultTable, most_complete, node_of, read_table
from exporters.madengine.site_files import JobOf, ManifestModel, SiteReader, read_manifest

HEADER = " model ,performance, metric ,tp"
MANIFEST = {
    "built_models": {
        "ci-llama.amd": {
            "name": "llama",
            "args": "--token hf_secret",
            "distributed": {"launcher": "torchrun", "nnodes": 4, "nproc_per_node": "8"},
        }
    },
    "context": {"gpu_vendor": "AMD", "docker_env_vars": {"HF_TOKEN": "secret"}},
    "deployment_config": {"target": "slurm", "slurm": {"nodes": 2}, "env_vars": {"PASSWORD": "secret"}},
}
LLAMA = ManifestModel("llama", "ci-llama.amd", "torchrun", "4", "8", "AMD", "slurm")
NOBODY: JobOf = lambda _uid, _named: ""  # noqa: E731


def reading(tables: Sequence[str] = (), manifests: Sequence[str] = ()) -> SiteReader:
    """A reader of these patterns."""
    return SiteReader([], tables, manifests, FakeClock())


def test_results_of_a_table() -> None:
    """Rows with a number are results, the last of each model and metric; all others count as none."""
    text = f"{HEADER}\na,1.5,tok,8\na, 2.5 ,tok,4\nb,,tok,8\nc,soon,tok,8\nd\n"
    assert read_table(text.encode()) == ResultTable({("a", "tok"): 2.5}, filled=2)
    assert read_table(b"model,performance\na,1\n") is None


def test_results_of_a_table_are_bounded() -> None:
    """So many results of a table are shown, and not one more; rows are counted beyond it."""
    rows = "".join(f"m{number},1,tok,8\n" for number in range(results.MAX_TABLE_RESULTS + 1))
    found = read_table(f"{HEADER}\n{rows}".encode())
    assert found is not None
    assert (len(found.results), found.filled) == (results.MAX_TABLE_RESULTS, results.MAX_TABLE_RESULTS + 1)


def test_node_of_a_table() -> None:
    """The directory of a table says which node it is of."""
    assert node_of("/o/llama/812/node_3/multi_results.csv") == 3
    assert node_of("/o/llama/812/node_3") is None
    assert node_of("/o/llama/812/nodes/x.csv") is None


def test_the_most_complete_table_counts() -> None:
    """Of each job the table with the most results counts, and the first node's where several have as many."""
    filled = (("7", 4, 5), ("7", 1, 2), ("7", 2, 5), ("7", 2, 3), ("8", 0, 0))
    found = most_complete(PlacedTable(job_id, node_rank, ResultTable({}, count)) for job_id, node_rank, count in filled)
    assert [(one.job_id, one.node_rank, one.table.filled) for one in found] == [("7", 2, 5), ("8", 0, 0)]


def write_table(folder: Path, job: str, node_rank: int, rows: str) -> Path:
    """Write a table into a node's directory."""
    path = folder / job / f"node_{node_rank}" / "multi_results_x.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEADER}\n{rows}")
    return path


def test_tables_are_read_again_when_they_change(tmp_path: Path) -> None:
    """A table is read again when it changes, keeps what it said while half written, and is forgotten when gone."""
    path = write_table(tmp_path, "812", 1, "a,1,tok,8\n")
    reader = reading(tables=[f"{tmp_path}/%j/node_*/multi_results*.csv"])
    assert reader.look(NOBODY).tables == (PlacedTable("812", 1, ResultTable({("a", "tok"): 1.0}, 1)),)
    path.write_text("mod")
    assert [one.table.filled for one in reader.look(NOBODY).tables] == [1]
    path.write_text(f"{HEADER}\na,1,tok,8\nb,2,tok,8\n")
    assert [one.table.filled for one in reader.look(NOBODY).tables] == [2]
    path.unlink()
    assert reader.look(NOBODY).tables == ()


def test_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tables are looked at, large ones not all at one look; a byte too many makes a table none."""
    monkeypatch.setattr(site_files, "MAX_TABLES", 2)
    paths = [write_table(tmp_path, "812", node_rank, "a,1,tok,8\n") for node_rank in range(3)]
    for number, path in enumerate(paths):
        os.utime(path, (100 + number, 100 + number))
    reader = reading(tables=[f"{tmp_path}/%j/node_*/*.csv"])
    assert [one.node_rank for one in reader.look(NOBODY).tables] == [1, 2]
    monkeypatch.setattr(whole_file, "LOOK_BYTES", 1)
    slow = reading(tables=[f"{tmp_path}/%j/node_*/*.csv"])
    assert [one.node_rank for one in slow.look(NOBODY).tables] == [2]
    assert [one.node_rank for one in slow.look(NOBODY).tables] == [1, 2]
    monkeypatch.setattr(site_files, "MAX_TABLE_BYTES", paths[2].stat().st_size)
    paths[2].write_text(paths[2].read_text() + "\n")
    short = reading(tables=[f"{tmp_path}/%j/node_*/*.csv"])
    short.look(NOBODY)
    assert [one.node_rank for one in short.look(NOBODY).tables] == [1]


def test_a_lines_result_comes_first(tmp_path: Path) -> None:
    """Where a task printed a result that its table has too, the printed one is shown."""
    node = MadNode(tmp_path, tables=[f"{tmp_path}/%j/node_*/multi_results*.csv"])
    node.write(0, "ends")
    write_table(tmp_path, "812", 0, "m,7,samples_per_second,8\nm,8,tok,8\n")
    node.start()
    shown = node.look(20.0)
    assert shown["performance/812/0/m/samples_per_second"] == 1001.5
    assert shown["performance/812/0/m/tok"] == 8.0
    node.end()


def test_named_fields_of_a_manifest() -> None:
    """Named fields are read and nothing that may be secret; one that is too long or of another form is empty."""
    assert read_manifest(json.dumps(MANIFEST).encode()) == (LLAMA,)
    digest, longest = f"registry:5000/x@sha256:{'a' * 64}", "i" * site_files.MAX_IMAGE_CHARACTERS
    cases: tuple[tuple[str, dict[str, object], ManifestModel], ...] = (
        ("user:password@registry/x", {}, ManifestModel("m", nodes="2")),
        (digest, {"launcher": "l" * 32, "nnodes": "9" * 7}, ManifestModel("m", digest, "l" * 32, "9" * 7)),
        (longest, {"launcher": "a b", "nnodes": 0, "nproc_per_node": 1.5}, ManifestModel("m", longest, nodes="2")),
        (longest + "i", {"launcher": 7, "nnodes": True}, ManifestModel("m", nodes="2")),
        ("i", {"launcher": "l" * 33, "nnodes": "1" * 8}, ManifestModel("m", "i", nodes="2")),
    )
    for image, run, expected in cases:
        models = {image: {"name": "m", "distributed": run}}
        written = {"built_models": models, "deployment_config": {"slurm": {"nodes": 2}}}
        assert read_manifest(json.dumps(written).encode()) == (expected,), image


def test_what_is_no_manifest() -> None:
    """Half a file, other types, deep nesting and a byte too many are no manifest; MAX_MODELS are read."""
    whole = json.dumps(MANIFEST).encode()
    at_bound = whole.ljust(site_files.MAX_MANIFEST_BYTES)
    assert read_manifest(at_bound) is not None
    for raw in (whole[:-9], b"\xff", b'{"built_models": []}', b'{"x": ' + b"[" * 100_000, at_bound + b" "):
        assert read_manifest(raw) is None
    many = {"built_models": {f"i{number}": {} for number in range(site_files.MAX_MODELS + 1)}}
    assert len(read_manifest(json.dumps(many).encode()) or ()) == site_files.MAX_MODELS


def test_a_manifest_is_its_jobs_users(tmp_path: Path) -> None:
    """Of the files whose user may speak for the job the newest is read."""
    for name, seconds, model in (("b", 200, "new"), ("a", 100, "old")):
        path = tmp_path / f"madengine_job_812_node_0/build_manifest_{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"built_models": {"i": {"name": model}}}))
        os.utime(path, (seconds, seconds))
    reader = reading(manifests=[f"{tmp_path}/madengine_job_%j_node_*/build_manifest*.json"])
    assert reader.look(NOBODY).manifests == {}
    found = reader.look(lambda uid, named: f"{named}/{uid}").manifests
    assert found == {f"812/{os.getuid()}": (ManifestModel("new", "i"),)}


def test_manifest_of_a_job_in_a_container(tmp_path: Path) -> None:
    """A job's manifest is shown once its writer owns output of the job, as its ranks may be root's."""
    node = MadNode(tmp_path, manifests=[f"{tmp_path}/madengine_job_%j_node_*/build_manifest.json"])
    path = tmp_path / "madengine_job_812_node_0/build_manifest.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MANIFEST))
    node.start()
    assert node.look(20.0) == {}
    node.write(0, "ends")
    assert node.look(60.0)["run_info/812/llama/ci-llama.amd/torchrun/4/8/AMD/slurm///"] == 1.0
    node.end()


def test_paths_have_a_job() -> None:
    """A pattern of tables or manifests without a job's id is refused."""
    for key in ("tables", "manifests"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: ["/o/node_*/x.csv"]}, MadengineConfig)
        assert msgspec.convert({key: ["/o/%j/node_*/x.csv"]}, MadengineConfig)
