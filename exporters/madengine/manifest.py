"""Parses build_manifest.json, the configuration of a madengine run. Pure.

The parser reads only named fields, because environments, build arguments, mounts, docker options and script arguments
may hold secrets.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

from exporters.madengine.lines import as_label

MAX_MANIFEST_BYTES = 1024 * 1024
MAX_MODELS = 16
MAX_IMAGE_CHARACTERS = 200
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)

_Value = str | int | float | bool | None


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
    """The fields read from a model's ``distributed``, from ``context`` and from ``deployment_config``."""

    launcher: _Value = None
    nnodes: _Value = None
    nproc_per_node: _Value = None
    gpu_vendor: _Value = None
    target: _Value = None


class _Slurm(msgspec.Struct):
    nodes: _Value = None


class _Deployment(_Part):
    slurm: _Slurm | None = None


class _Model(msgspec.Struct):
    name: _Value = None
    distributed: _Part | None = None


class _Manifest(msgspec.Struct):
    built_models: dict[Annotated[str, msgspec.Meta(max_length=1024)], _Model]
    context: _Part | None = None
    deployment_config: _Deployment | None = None


_DECODER = msgspec.json.Decoder(_Manifest)


def read_manifest(raw: bytes) -> tuple[ManifestModel, ...] | None:
    """Return the first MAX_MODELS models of a manifest; None if it is half written, too long or not a manifest."""
    if len(raw) > MAX_MANIFEST_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
    except (ValueError, RecursionError):  # msgspec and invalid UTF-8 raise ValueErrors
        return None
    deployment = written.deployment_config or _Deployment()
    models = []
    for image, model in list(written.built_models.items())[:MAX_MODELS]:
        run = model.distributed or _Part()
        models.append(
            ManifestModel(
                as_label(model.name if isinstance(model.name, str) else ""),
                image if len(image) <= MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(image) else "",  # no user:password@
                _in_form(_WORD, run.launcher),
                _in_form(_COUNT, run.nnodes) or _in_form(_COUNT, (deployment.slurm or _Slurm()).nodes),
                _in_form(_COUNT, run.nproc_per_node),
                _in_form(_WORD, (written.context or _Part()).gpu_vendor),
                _in_form(_WORD, deployment.target),
            )
        )
    return tuple(models)


def _in_form(form: re.Pattern[str], value: _Value) -> str:
    text = str(value) if isinstance(value, str) or (form is _COUNT and isinstance(value, int)) else ""
    return text if form.fullmatch(text) else ""
