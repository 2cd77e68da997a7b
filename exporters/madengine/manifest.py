"""build_manifest.json: what a madengine run was asked to do. Only named fields are read: the rest may hold secrets.

Never read: environments, build arguments, mounts, options of docker, arguments of scripts, credentials. Pure.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from exporters.madengine.lines import as_label

MAX_MANIFEST_BYTES = 1024 * 1024
MAX_MODELS = 16
"""Of one manifest."""
MAX_IMAGE_CHARACTERS = 200
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)

_Value = str | int | float | bool | None


class ManifestModel(msgspec.Struct, frozen=True):
    """A model that a run was asked for; each field is empty where it is not given, or is none of its kind."""

    model: str
    image: str = ""
    launcher: str = ""
    nodes: str = ""
    processes_per_node: str = ""
    gpu_vendor: str = ""
    target: str = ""


class _Distributed(msgspec.Struct):
    launcher: _Value = None
    nnodes: _Value = None
    nproc_per_node: _Value = None


class _Model(msgspec.Struct):
    name: _Value = None
    distributed: _Distributed | None = None


class _ContextPart(msgspec.Struct):
    gpu_vendor: _Value = None


class _Slurm(msgspec.Struct):
    nodes: _Value = None


class _Deployment(msgspec.Struct):
    target: _Value = None
    slurm: _Slurm | None = None


class _Manifest(msgspec.Struct):
    built_models: dict[Annotated[str, msgspec.Meta(max_length=1024)], _Model]
    context: _ContextPart | None = None
    deployment_config: _Deployment | None = None


_DECODER = msgspec.json.Decoder(_Manifest)


def read_manifest(raw: bytes) -> tuple[ManifestModel, ...] | None:
    """The first MAX_MODELS models of a manifest; None where it is half written, too large or none."""
    if len(raw) > MAX_MANIFEST_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
    except (ValueError, RecursionError):  # msgspec's errors and those of bad UTF-8 are ValueErrors
        return None
    vendor = "" if written.context is None else _word(written.context.gpu_vendor)
    deployment = written.deployment_config or _Deployment()
    found = []
    for image, model in list(written.built_models.items())[:MAX_MODELS]:
        run = model.distributed or _Distributed()
        found.append(
            ManifestModel(
                as_label(model.name if isinstance(model.name, str) else ""),
                _image(image),
                _word(run.launcher),
                _count(run.nnodes) or _count(deployment.slurm.nodes if deployment.slurm else None),
                _count(run.nproc_per_node),
                vendor,
                _word(deployment.target),
            )
        )
    return tuple(found)


def _word(value: _Value) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _count(value: _Value) -> str:
    text = str(value) if isinstance(value, int | str) else ""
    return text if _COUNT.fullmatch(text) else ""


def _image(name: str) -> str:
    """The name of an image; empty for what has another sign of an account than the digest's."""
    return name if len(name) <= MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(name) else ""
