"""Reads whole configured files (perf.csv, result tables, manifests), and reads a file again when it changes. Blocks.

Of a manifest (build_manifest.json, a run's configuration) only named fields are read, because environments, build
arguments, mounts, docker options and script arguments may hold secrets.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.exporter import Clock
from agent.sdk.files import ChangedFiles, FollowedFile, HangGuard, TextFiles, newest
from exporters.madengine.results import (
    MAX_CSV_BYTES,
    MAX_RESULTS,
    NodeTable,
    Results,
    ResultTable,
    as_label,
    node_of,
    read_perf_csv,
    read_table,
)

MAX_TABLES = 128  # Limit of tables per read: the newest files, with equal shares of all users
MAX_TABLE_BYTES = 1024 * 1024  # About 10,000 results
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_MANIFESTS = 64
MAX_MODELS = 16
MAX_IMAGE_CHARACTERS = 200
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)  # no user:password@
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_Value = str | int | float | bool | None
JobOf = Callable[[int, str], str]
"""Takes a uid and a job id. Returns the job's label if files of this user count for the job, else an empty text."""


class ManifestModel(NamedTuple):
    """A model of a run. A field is empty if the manifest lacks it or has an invalid value."""

    model: str
    image: str = ""
    launcher: str = ""
    nodes: str = ""
    processes_per_node: str = ""
    gpu_vendor: str = ""
    target: str = ""


class _Part(msgspec.Struct):
    """The fields read in a model's ``distributed``, in ``context``, and in ``deployment_config`` with its ``slurm``."""

    launcher: _Value = None
    nnodes: _Value = None
    nproc_per_node: _Value = None
    gpu_vendor: _Value = None
    target: _Value = None
    nodes: _Value = None


class _Deployment(_Part):
    slurm: _Part | None = None


class _Model(msgspec.Struct):
    name: _Value = None
    distributed: _Part | None = None


class _Manifest(msgspec.Struct):
    built_models: dict[Annotated[str, msgspec.Meta(max_length=1024)], _Model]
    context: _Part | None = None
    deployment_config: _Deployment | None = None


_DECODER = msgspec.json.Decoder(_Manifest)


def read_manifest(raw: bytes) -> tuple[ManifestModel, ...] | None:
    """Return the first MAX_MODELS models of a manifest; None if it is half written or not a manifest."""
    try:
        written = _DECODER.decode(raw)
    except (ValueError, RecursionError):  # msgspec and invalid UTF-8 raise ValueErrors
        return None
    deployment = written.deployment_config or _Deployment()
    nodes, target = _in_form(_COUNT, (deployment.slurm or _Part()).nodes), _in_form(_WORD, deployment.target)
    vendor = _in_form(_WORD, (written.context or _Part()).gpu_vendor)
    models = []
    for image, model in list(written.built_models.items())[:MAX_MODELS]:
        name, run = as_label(model.name if isinstance(model.name, str) else ""), model.distributed or _Part()
        shown = image if len(image) <= MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(image) else ""
        launcher, processes = _in_form(_WORD, run.launcher), _in_form(_COUNT, run.nproc_per_node)
        run_nodes = _in_form(_COUNT, run.nnodes) or nodes
        models.append(ManifestModel(name, shown, launcher, run_nodes, processes, vendor, target))
    return tuple(models)


def _in_form(form: re.Pattern[str], value: _Value) -> str:
    text = str(value) if isinstance(value, str) or (form is _COUNT and isinstance(value, int)) else ""
    return text if form.fullmatch(text) else ""


class SiteFacts(NamedTuple):
    """The content of all configured files. ``manifests``: models by job."""

    results: Results
    tables: tuple[NodeTable, ...]
    manifests: dict[str, tuple[ManifestModel, ...]]


class SiteReader:
    """Reads perf.csv files by name (``results``), and tables (in ``node_N`` of a job) and manifests by patterns.

    ``hangs``: leaves out files that hang.
    """

    def __init__(
        self,
        results: Sequence[str],
        tables: Sequence[str],
        manifests: Sequence[str],
        clock: Clock,
        hangs: HangGuard | None = None,
    ) -> None:
        self._paths = dict.fromkeys(results)
        self._results: ChangedFiles[Results] = ChangedFiles(MAX_CSV_BYTES, read_perf_csv, hangs)
        self._listing = TextFiles(tables, clock.monotonic, hangs=hangs)
        self._tables: ChangedFiles[ResultTable] = ChangedFiles(MAX_TABLE_BYTES, read_table, hangs)
        self._manifest_listing = TextFiles(manifests, clock.monotonic, hangs=hangs)
        self._manifests: ChangedFiles[tuple[ManifestModel, ...]] = ChangedFiles(
            MAX_MANIFEST_BYTES, read_manifest, hangs
        )

    def look(self, job_of: JobOf) -> SiteFacts:
        """Read new and changed files, and return the content of all files."""
        self._results.look(self._paths)
        results: Results = {}
        for path in self._paths:
            results |= self._results.contents.get(path, {})
        names: dict[str, tuple[str, int]] = {}
        users: dict[str, int | None] = {}
        for file in newest(self._listing.discover(), MAX_TABLES):
            job_id, node_rank = self._listing.job_id(file), node_of(file.path)
            if job_id is not None and node_rank is not None:
                names[file.path], users[file.path] = (job_id, node_rank), file.share.uid
        self._tables.look(users)
        tables = tuple(NodeTable(*names[path], table) for path, table in sorted(self._tables.contents.items()))
        return SiteFacts(dict(list(results.items())[-MAX_RESULTS:]), tables, self._look_at_manifests(job_of))

    def _look_at_manifests(self, job_of: JobOf) -> dict[str, tuple[ManifestModel, ...]]:
        """Return for each job the models of its newest manifest. The job's user must own the manifest."""
        files: dict[str, FollowedFile] = {}
        for file in newest(self._manifest_listing.discover(), MAX_MANIFESTS):
            named = self._manifest_listing.job_id(file)
            if named is not None and (job_id := job_of(file.share.uid, named)):
                files.setdefault(job_id, file)
        self._manifests.look({file.path: file.share.uid for file in files.values()})
        contents = self._manifests.contents
        return {job_id: contents[file.path] for job_id, file in files.items() if file.path in contents}
