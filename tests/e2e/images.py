"""The container image, built from the Containerfile on a bare Debian, and run by an OCI runtime (runc)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import ROOT
from trees import TREES, mirror

SLIM = TREES / "trixie-slim.tar"
WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
"""What Debian's own slim image leaves out, too."""
BASE, NAME = "localhost/debian:trixie-slim", "localhost/rankwatch:test"


def why_no_images() -> str | None:
    """Return the reason to skip, or None."""
    if os.geteuid() != 0:
        return "building an image needs root"
    missing = [name for name in ("mmdebstrap", "buildah", "runc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: scripts/test installs it" if missing else None


class Image(NamedTuple):
    """``root``: its files; ``config``: what it says of how it is run (OCI's image configuration)."""

    root: Path
    config: dict[str, Any]

    def size(self) -> int:
        """Bytes of all of its files."""
        sizes = (path.lstat().st_size for path in self.root.rglob("*"))
        return sum(sizes)


@contextlib.contextmanager
def image(directory: Path) -> Iterator[Image]:
    """Build the image in a storage of its own, and mount it."""
    TREES.mkdir(parents=True, exist_ok=True)
    if not SLIM.exists():
        draft = SLIM.with_suffix(".draft.tar")
        options = [f"--dpkgopt=path-exclude={each}" for each in WITHOUT]
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", *options, "trixie", draft, mirror()], check=True)
        draft.rename(SLIM)
    storage = directory / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n')
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}

    def buildah(*arguments: str | Path) -> str:
        done = subprocess.run(["buildah", *arguments], check=True, env=env, capture_output=True, text=True)
        return done.stdout.strip()

    base = buildah("from", "scratch")
    buildah("add", "--quiet", base, SLIM, "/")
    buildah("commit", "--quiet", base, BASE)
    buildah("rm", base)
    done = subprocess.run(
        [ROOT / "scripts/image", "--base", BASE, "--tag", NAME], check=False, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = buildah("from", "--pull-never", NAME)
    config = json.loads(buildah("inspect", "--type", "image", NAME))["Docker"]["config"]
    try:
        yield Image(Path(buildah("mount", made)), config)
    finally:
        buildah("rm", made)
        subprocess.run(["buildah", "rmi", "--all", "--force"], check=False, env=env, capture_output=True)


class Mount(NamedTuple):
    """A path of the host in the container."""

    source: Path
    destination: str
    writable: bool = False


@contextlib.contextmanager
def running(
    image: Image,
    directory: Path,
    *,
    user: int,
    capabilities: Sequence[str] = (),
    mounts: Sequence[Mount] = (),
    sees_host: bool = True,
    arguments: Sequence[str] = (),
) -> Iterator[str]:
    """Run the image with a read-only root and these capabilities alone; yield the container's id.

    ``sees_host``: in the process namespace of the host (hostPID); its network is the host's either way (hostNetwork).
    ``arguments``: in the place of the image's own.
    """
    bundle = directory / "bundle"
    bundle.mkdir()
    everything = {kind: list(capabilities) for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    spaces = [{"type": "mount"}, {"type": "ipc"}, {"type": "cgroup"}, *([] if sees_host else [{"type": "pid"}])]
    given = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
        {"destination": "/run/rankwatch-agent", "type": "tmpfs", "source": "tmpfs"},
    ]
    given += [
        {
            "destination": each.destination,
            "type": "bind",
            "source": str(each.source),
            "options": ["bind", "rw" if each.writable else "ro"],
        }
        for each in mounts
    ]
    (bundle / "config.json").write_text(
        json.dumps(
            {
                "ociVersion": "1.0.0",
                "root": {"path": str(image.root), "readonly": True},
                "mounts": given,
                "process": {
                    "user": {"uid": user, "gid": user},
                    "args": [*image.config["Entrypoint"], *(arguments or image.config["Cmd"])],
                    "env": image.config["Env"],
                    "cwd": "/",
                    "capabilities": everything,
                    "noNewPrivileges": True,
                },
                "linux": {"namespaces": spaces},
            }
        )
    )
    name = f"rankwatch-{os.getpid()}-{user}"
    runc = ["runc", f"--root={directory / 'runc'}"]
    log = (directory / "container.log").open("wb")
    process = subprocess.Popen([*runc, "run", "--bundle", bundle, name], stdout=log, stderr=log)
    try:
        yield name
    finally:
        subprocess.run([*runc, "kill", name, "TERM"], check=False, capture_output=True)
        try:
            process.wait(20)
        finally:
            subprocess.run([*runc, "delete", "--force", name], check=False, capture_output=True)
            process.wait(10)
            log.close()
