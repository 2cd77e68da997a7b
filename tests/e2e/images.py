"""The container image, built from the Containerfile on a minimal Debian, and run by runc as by kubelet."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import ROOT
from nodes import Node
from trees import TREES, mirror

SLIM = TREES / "trixie-slim.tar"
WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
"""Paths that Debian's slim image leaves out as well."""
SECCOMP = Path("/usr/share/containers/seccomp.json")
"""The system calls that container runtimes allow by default; from the package of their common files."""
HIDDEN = (
    "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
)  # fmt: skip
FIXED = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""Paths that runtimes hide from containers, and paths that they make read-only."""
KUBELETS_SETS = ("bounding", "effective", "permitted")
"""Sets of capabilities, without inheritable and ambient ones, so that programs of users other than root lose them."""
BASE, NAME = "localhost/debian:trixie-slim", "localhost/rankwatch:test"


def why_no_images() -> str | None:
    """Return the reason to skip, or None."""
    if os.geteuid() != 0:
        return "building an image needs root"
    missing = [name for name in ("mmdebstrap", "buildah", "runc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: scripts/test installs it" if missing else None


class Image(NamedTuple):
    """``root``: the image's files; ``config``: its OCI image configuration.

    ``save`` writes it to a file for `docker load`."""

    root: Path
    config: dict[str, Any]
    save: Callable[[Path], object]

    def size(self) -> int:
        """Return the bytes of all files."""
        sizes = (path.lstat().st_size for path in self.root.rglob("*"))
        return sum(sizes)


@contextlib.contextmanager
def image(directory: Path) -> Iterator[Image]:
    """Build the image in separate storage, and mount it."""
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
        yield Image(
            root=Path(buildah("mount", made)),
            config=config,
            save=lambda path: buildah("push", "--quiet", NAME, f"docker-archive:{path}:{NAME}"),
        )
    finally:
        buildah("rm", made)
        subprocess.run(["buildah", "rmi", "--all", "--force"], check=False, env=env, capture_output=True)


class Mount(NamedTuple):
    """A mount in the container: a path of the host, or without a source a file system in memory."""

    source: Path | None
    destination: str
    writable: bool = False

    def described(self) -> dict[str, Any]:
        """Return the mount in the form of a runtime's configuration."""
        if self.source is None:
            return {"destination": self.destination, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}
        options = ["bind", "rw" if self.writable else "ro"]
        return {"destination": self.destination, "type": "bind", "source": str(self.source), "options": options}


def default_seccomp(capabilities: Sequence[str]) -> dict[str, Any]:
    """Return the default profile for a container with these capabilities, in the runtime's form."""
    profile = json.loads(SECCOMP.read_text())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    architectures = {"amd64": ["X86_64", "X86", "X32"], "arm64": ["AARCH64", "ARM"]}[machine]

    def holds(condition: dict[str, Any]) -> bool:
        return machine in condition.get("arches", [machine]) and set(condition.get("caps", ())) <= set(capabilities)

    rules = [
        {key: rule[key] for key in ("names", "action", "args", "errnoRet") if rule.get(key)}
        for rule in profile["syscalls"]
        if holds(rule.get("includes", {})) and not (rule.get("excludes") and holds(rule["excludes"]))
    ]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [f"SCMP_ARCH_{architecture}" for architecture in architectures],
        "syscalls": rules,
    }


class Container:
    """A container of the image in ``node``, with a runtime's default restrictions.

    ``sees_host``: in the node's process namespace (hostPID); the network is always the node's (hostNetwork).
    ``command``: with its arguments; ``read_only``: its root; ``seccomp``: replaces the default profile."""

    def __init__(
        self,
        node: Node,
        image: Image,
        bundle: Path,
        command: Sequence[str],
        *,
        user: int,
        capabilities: Sequence[str] = (),
        mounts: Sequence[Mount] = (),
        sees_host: bool = True,
        read_only: bool = True,
        seccomp: dict[str, Any] | None = None,
    ) -> None:
        bundle.mkdir()
        self._bundle = bundle
        self._node = node
        self._name = f"rankwatch-{os.getpid()}-{bundle.name}"
        self._runc = ["runc", f"--root={bundle / 'runc'}"]
        sets = {kind: list(capabilities) for kind in KUBELETS_SETS}
        spaces = [{"type": "mount"}, {"type": "ipc"}, {"type": "cgroup"}, *([] if sees_host else [{"type": "pid"}])]
        system = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
        ]
        process = {
            "user": {"uid": user, "gid": user},
            "args": list(command),
            "env": image.config["Env"],
            "cwd": "/",
            "capabilities": sets,
            "noNewPrivileges": True,
        }
        linux = {
            "namespaces": spaces,
            "seccomp": default_seccomp(capabilities) if seccomp is None else seccomp,
            "maskedPaths": HIDDEN,
            "readonlyPaths": FIXED,
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        }
        config = {
            "ociVersion": "1.0.0",
            "root": {"path": str(image.root), "readonly": read_only},
            "mounts": [*system, *(mount.described() for mount in mounts)],
            "process": process,
            "linux": linux,
        }
        (bundle / "config.json").write_text(json.dumps(config))

    def run(self) -> subprocess.CompletedProcess[str]:
        return self._node.run([*self._runc, "run", "--bundle", self._bundle, self._name])

    def execute(self, user: int, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as a health check does."""
        return self._node.run([*self._runc, "exec", f"--user={user}:{user}", self._name, *command])

    @contextlib.contextmanager
    def running(self) -> Iterator[Container]:
        """Run the container in this context."""
        with (self._bundle / "container.log").open("wb") as log:
            command = [*self._runc, "run", "--bundle", self._bundle, self._name]
            process = self._node.popen(command, stdout=log, stderr=log)
            try:
                yield self
            finally:
                self._node.run([*self._runc, "kill", self._name, "TERM"])
                try:
                    process.wait(20)
                finally:
                    self._node.run([*self._runc, "delete", "--force", self._name])
