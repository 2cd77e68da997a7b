"""madengine: the fields that the agent reads in a manifest, and the choice of a job's manifest."""

import json
import os
from pathlib import Path

import pytest
from fake_clock import FakeClock
from test_madengine import NOBODY, MadNode

from exporters.madengine import site_files
from exporters.madengine.site_files import ManifestModel, SiteReader, read_manifest

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


def test_named_fields_of_a_manifest() -> None:
    """Only named fields without secrets are read; a field that is too long or of another type is empty."""
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
    """A cut file, other types and deep nesting are no manifest; at most MAX_MODELS models are read."""
    whole = json.dumps(MANIFEST).encode()
    for raw in (whole[:-9], b"\xff", b'{"built_models": []}', b'{"x": ' + b"[" * 100_000):
        assert read_manifest(raw) is None
    many = {"built_models": {f"i{number}": {} for number in range(site_files.MAX_MODELS + 1)}}
    assert len(read_manifest(json.dumps(many).encode()) or ()) == site_files.MAX_MODELS


def test_a_manifest_is_its_jobs_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest manifest of the job's user is read, unless it is above MAX_MANIFEST_BYTES, a link or no manifest."""
    for name, seconds, model in (("a", 100, "old"), ("b", 200, "new")):
        path = tmp_path / f"madengine_job_812_node_0/build_manifest_{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"built_models": {"i": {"name": model}}}))
        os.utime(path, (seconds, seconds))
    patterns = [f"{tmp_path}/madengine_job_%j_node_*/build_manifest*.json"]
    reader = SiteReader([], [], patterns, FakeClock())
    assert reader.look(NOBODY).manifests == {}
    manifests = reader.look(lambda uid, named: f"{named}/{uid}").manifests
    assert manifests == {f"812/{os.getuid()}": (ManifestModel("new", "i"),)}
    monkeypatch.setattr(site_files, "MAX_MANIFESTS", 1)
    for size, jobs in ((path.stat().st_size, 1), (path.stat().st_size - 1, 0)):
        monkeypatch.setattr(site_files, "MAX_MANIFEST_BYTES", size)
        manifests = SiteReader([], [], patterns, FakeClock()).look(lambda _, named: named).manifests
        assert len(manifests) == jobs
    monkeypatch.setattr(site_files, "MAX_MANIFEST_BYTES", path.stat().st_size)

    def swapped(_: int, named: str) -> str:
        path.rename(tmp_path / "other.json")
        path.symlink_to(tmp_path / "other.json")
        return named

    assert SiteReader([], [], patterns, FakeClock()).look(swapped).manifests == {}  # a link is not accepted
    other = tmp_path / "madengine_job_813_node_0/build_manifest.json"
    other.parent.mkdir()
    other.write_text("{}")
    assert reader.look(lambda _, named: named).manifests == {}  # the newest file of two jobs, which is no manifest


def test_manifest_of_a_job_in_a_container(tmp_path: Path) -> None:
    """A manifest is shown once the manifest's owner also owns output of the job, because the ranks can run as root."""
    node = MadNode(tmp_path, manifests=[f"{tmp_path}/madengine_job_%j_node_*/build_manifest.json"])
    path = tmp_path / "madengine_job_812_node_0/build_manifest.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MANIFEST))
    assert node.look(20.0) == {}
    node.write(0, "ends")
    assert node.look(60.0)["run_info/812/llama/ci-llama.amd/torchrun/4/8/AMD/slurm///"] == 1.0
    node.end()
