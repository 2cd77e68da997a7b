"""madengine: tables of several results, manifests, and how a site's files are found and read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from test_madengine import MadNode

from exporters.madengine import manifest, site_files, tables
from exporters.madengine.exporter import SITE_SECONDS, MadengineConfig, MadengineExporter
from exporters.madengine.manifest import ManifestModel, read_manifest
from exporters.madengine.site_files import JobManifest, ManifestReader, TableReader
from exporters.madengine.tables import PlacedTable, ResultTable, most_complete, node_of, of_nodes, read_table

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


def test_results_of_a_table() -> None:
    """Rows with a number are results, the last of each model and metric; all others are empty."""
    text = f"{HEADER}\na,1.5,tok,8\na, 2.5 ,tok,4\nb,,tok,8\nc,soon,tok,8\nd\n"
    assert read_table(text.encode()) == ResultTable({("a", "tok"): 2.5}, filled=2, empty=3)
    assert read_table(b"model,performance\na,1\n") is None


def test_results_of_a_table_are_bounded() -> None:
    """So many results of a table are shown, and not one more; rows are counted beyond it."""
    rows = "".join(f"m{number},1,tok,8\n" for number in range(tables.MAX_TABLE_RESULTS + 1))
    found = read_table(f"{HEADER}\n{rows}".encode())
    assert found is not None
    assert (len(found.results), found.filled) == (tables.MAX_TABLE_RESULTS, tables.MAX_TABLE_RESULTS + 1)


def test_node_of_a_table() -> None:
    """The directory of a table says which node it is of."""
    assert node_of("/o/llama/812/node_3/multi_results.csv") == 3
    assert node_of("/o/llama/812/node_3") is None
    assert node_of("/o/llama/812/nodes/x.csv") is None


def test_the_most_complete_table_counts() -> None:
    """Of each job the table with the most results counts, and the first node's where several have as many."""
    placed = [
        PlacedTable("7", 1, ResultTable({}, 2, 0)),
        PlacedTable("7", 2, ResultTable({}, 5, 9)),
        PlacedTable("7", 2, ResultTable({}, 3, 0)),
        PlacedTable("7", 4, ResultTable({}, 5, 0)),
        PlacedTable("8", 0, ResultTable({}, 0, 4)),
    ]
    assert [(one.job_id, one.node_rank, one.table.filled) for one in of_nodes(placed)] == [
        ("7", 1, 2),
        ("7", 2, 5),
        ("7", 4, 5),
        ("8", 0, 0),
    ]
    assert [(one.job_id, one.node_rank) for one in most_complete(placed)] == [("7", 2), ("8", 0)]


def test_named_fields_of_a_manifest() -> None:
    """Model, image, launcher, counts, GPUs' vendor and target are read, and nothing of arguments or environments."""
    found = read_manifest(json.dumps(MANIFEST).encode())
    assert found == (ManifestModel("llama", "ci-llama.amd", "torchrun", "4", "8", "AMD", "slurm"),)
    assert "secret" not in str(msgspec.to_builtins(found))


@pytest.mark.parametrize(
    ("image", "distributed", "expected"),
    [
        ("user:password@registry/x", {}, ManifestModel("m", nodes="2")),
        (f"registry:5000/x@sha256:{'a' * 64}", {}, ManifestModel("m", f"registry:5000/x@sha256:{'a' * 64}", nodes="2")),
        ("i" * manifest.MAX_IMAGE_CHARACTERS, {}, ManifestModel("m", "i" * manifest.MAX_IMAGE_CHARACTERS, nodes="2")),
        ("i" * (manifest.MAX_IMAGE_CHARACTERS + 1), {}, ManifestModel("m", nodes="2")),
        ("i", {"launcher": "a b", "nnodes": 0}, ManifestModel("m", "i", nodes="2")),
        ("i", {"launcher": 7, "nnodes": True, "nproc_per_node": 1.5}, ManifestModel("m", "i", nodes="2")),
        ("i", {"launcher": "l" * 33, "nnodes": "1" * 8}, ManifestModel("m", "i", nodes="2")),
    ],
)
def test_odd_values_of_a_manifest(image: str, distributed: dict[str, object], expected: ManifestModel) -> None:
    """A value that is none of its kind, or too long, is not told; Slurm's count of nodes is the second choice."""
    written = {
        "built_models": {image: {"name": "m", "distributed": distributed}},
        "deployment_config": {"slurm": {"nodes": 2}},
    }
    assert read_manifest(json.dumps(written).encode()) == (expected,)


def test_what_is_no_manifest() -> None:
    """Half a file, other types, deep nesting and a byte too many are no manifest; so many models are read."""
    whole = json.dumps(MANIFEST).encode()
    assert read_manifest(whole.ljust(manifest.MAX_MANIFEST_BYTES)) is not None
    for raw in (
        whole[:-9],
        b"\xff",
        b'{"built_models": []}',
        b'{"x": ' + b"[" * 100_000,
        whole.ljust(manifest.MAX_MANIFEST_BYTES + 1),
    ):
        assert read_manifest(raw) is None
    many = {f"i{number}": {"name": "m"} for number in range(manifest.MAX_MODELS + 1)}
    found = read_manifest(json.dumps({"built_models": many}).encode())
    assert found is not None
    assert len(found) == manifest.MAX_MODELS


def write_table(folder: Path, job: str, node_rank: int, rows: str) -> Path:
    """Write a table into a node's directory."""
    path = folder / job / f"node_{node_rank}" / "multi_results_x.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEADER}\n{rows}")
    return path


def test_tables_are_read_again_when_they_change(tmp_path: Path) -> None:
    """A table is read again when it changes, keeps what it said while half written, and is forgotten when gone."""
    path = write_table(tmp_path, "812", 1, "a,1,tok,8\n")
    reader = TableReader([f"{tmp_path}/%j/node_*/multi_results*.csv"], FakeClock())
    assert reader.look() == (PlacedTable("812", 1, ResultTable({("a", "tok"): 1.0}, 1, 0)),)
    path.write_text("mod")
    assert [one.table.filled for one in reader.look()] == [1]
    path.write_text(f"{HEADER}\na,1,tok,8\nb,2,tok,8\n")
    assert [one.table.filled for one in reader.look()] == [2]
    path.unlink()
    assert reader.look() == ()


def test_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tables are looked at, large ones not all at one look; a byte too many makes a table none."""
    monkeypatch.setattr(site_files, "MAX_TABLES", 2)
    paths = [write_table(tmp_path, "812", node_rank, "a,1,tok,8\n") for node_rank in range(3)]
    for number, path in enumerate(paths):
        os.utime(path, (100 + number, 100 + number))
    reader = TableReader([f"{tmp_path}/%j/node_*/*.csv"], FakeClock())
    assert [one.node_rank for one in reader.look()] == [1, 2]
    monkeypatch.setattr(site_files, "LOOK_BYTES", 1)
    slow = TableReader([f"{tmp_path}/%j/node_*/*.csv"], FakeClock())
    assert [one.node_rank for one in slow.look()] == [2]
    assert [one.node_rank for one in slow.look()] == [1, 2]
    monkeypatch.setattr(site_files, "MAX_TABLE_BYTES", paths[2].stat().st_size)
    paths[2].write_text(paths[2].read_text() + "\n")
    short = TableReader([f"{tmp_path}/%j/node_*/*.csv"], FakeClock())
    short.look()
    assert [one.node_rank for one in short.look()] == [1]


def test_a_manifest_is_its_jobs_users(tmp_path: Path) -> None:
    """Only a file whose user may speak for the job is read, the one that was written last."""
    for name, seconds, model in (("a", 100, "old"), ("b", 200, "new")):
        path = tmp_path / f"madengine_job_812_node_0/build_manifest_{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"built_models": {"i": {"name": model}}}))
        os.utime(path, (seconds, seconds))
    reader = ManifestReader([f"{tmp_path}/madengine_job_%j_node_*/build_manifest*.json"], FakeClock())
    assert reader.look(lambda _uid, _named: "") == ()
    assert reader.look(lambda uid, named: f"{named}/{uid}") == (
        JobManifest(f"812/{os.getuid()}", (ManifestModel("new", "i"),)),
    )


def test_tables_and_manifest_of_a_job(tmp_path: Path) -> None:
    """The best table's results and all counts are shown; a manifest is, once its user's output is the job's."""
    node = MadNode(tmp_path)
    write_table(tmp_path, "812", 0, "a,,tok,8\n")
    write_table(tmp_path, "812", 1, "a,7,tok,8\n")
    folder = tmp_path / "madengine_job_812_node_0"
    folder.mkdir()
    (folder / "build_manifest.json").write_text(json.dumps(MANIFEST))
    node.config = MadengineConfig(
        paths=node.config.paths,
        tables=[f"{tmp_path}/%j/node_*/multi_results*.csv"],
        manifests=[f"{tmp_path}/madengine_job_%j_node_*/build_manifest.json"],
    )
    node.exporter = MadengineExporter(node.config)
    node.start()
    counts = {
        "table_rows/812/0/filled": 0.0,
        "table_rows/812/0/empty": 1.0,
        "table_rows/812/1/filled": 1.0,
        "table_rows/812/1/empty": 0.0,
        "performance/812/1/a/tok": 7.0,
    }
    assert node.look() == counts  # the job's ranks are root's: nothing says that the manifest's user is the job's
    node.write(0, "ends")
    shown = node.look(SITE_SECONDS)
    assert shown.items() > counts.items()
    assert shown["manifest_info/812/llama/ci-llama.amd/torchrun/4/8/AMD/slurm"] == 1.0
    node.end()


def test_a_lines_result_comes_first(tmp_path: Path) -> None:
    """Where a task printed a result that its table has too, the printed one is shown."""
    node = MadNode(tmp_path)
    node.write(0, "ends")
    write_table(tmp_path, "812", 0, "m,7,samples_per_second,8\nm,8,tok,8\n")
    node.config = MadengineConfig(paths=node.config.paths, tables=[f"{tmp_path}/%j/node_*/multi_results*.csv"])
    node.exporter = MadengineExporter(node.config)
    node.start()
    shown = node.look()
    assert shown["performance/812/0/m/samples_per_second"] == 1001.5
    assert shown["performance/812/0/m/tok"] == 8.0
    node.end()


def test_paths_have_a_job() -> None:
    """A pattern of tables or manifests without a job's id is refused."""
    for key in ("tables", "manifests"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: ["/o/node_*/x.csv"]}, MadengineConfig)
        assert msgspec.convert({key: ["/o/%j/node_*/x.csv"]}, MadengineConfig)
