"""The owner of a process: what proves it, and what only looks like a proof."""

import os
from pathlib import Path

import pytest
from proc_tree import ProcTree

from agent.sdk.exporter import Roots
from agent.sdk.ranks import Owner
from agent.sdk.system import ProcFS
from exporters.process import ownership
from exporters.process.ownership import MAX_ANCESTORS, MAX_PODS, Group, OwnerSearch, group_of

POD = "c7a3f8b2-1f2e-4d5c-9a8b-7c6d5e4f3a2b"
SLICE = POD.replace("-", "_")
CONTAINER = "0123456789abcdef" * 4
SLURM = "/system.slice/slurmstepd.scope/job_4711"
STEP = f"{SLURM}/step_0/user/task_0"


class Node:
    """Fake processes and control groups; the test's user stands in for root."""

    def __init__(self, folder: Path) -> None:
        self.proc = ProcTree(folder / "proc")
        self.sys, self.log = folder / "sys", folder / "log"
        self.groups = self.sys / "fs/cgroup"

    def owner(self, pid: int, uid: int | None = 1000) -> tuple[Owner, str]:
        proc = ProcFS(self.proc.root)
        stat = proc.stat(pid)
        assert stat is not None
        return OwnerSearch(Roots(self.proc.root, self.sys, log=self.log), proc).look(stat, uid, proc.cgroup(pid))

    def owner_in(self, path: str, *, hierarchy: str = "", made: bool = True) -> tuple[Owner, str]:
        """Return the owner of a process in a control group; ``made``: the group's directory exists."""
        if made:
            (self.groups / hierarchy / path.lstrip("/")).mkdir(parents=True)
        self.proc.add(100, uid=1000, cgroup=f"0:{hierarchy}:{path}\n")
        return self.owner(100)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Provide a node whose directories belong to root."""
    monkeypatch.setattr(ownership, "ROOT_UID", os.geteuid())
    return Node(tmp_path)


POD_PATHS = [
    f"/kubepods/burstable/pod{POD}/{CONTAINER}",
    f"/kubepods/pod{POD}/{CONTAINER}",
    f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{CONTAINER}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{CONTAINER}.scope",
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice"
    f"/cri-containerd-{CONTAINER}.scope",
    f"/kubelet/kubepods/besteffort/pod{POD}/{CONTAINER}",
]


BESIDE = (
    f"/../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CONTAINER}.scope",
    f"/../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CONTAINER}.scope", f"/../../../pod{POD}/{CONTAINER}",
)  # fmt: skip
CONTAINER_PATHS = (
    f"/docker/{CONTAINER}", f"/system.slice/docker-{CONTAINER}.scope", f"/machine.slice/libpod-{CONTAINER}.scope",
    f"/libpod_parent/libpod-{CONTAINER}", f"/system.slice/cri-containerd-{CONTAINER}.scope",
)  # fmt: skip


@pytest.mark.parametrize(("path", "owner", "made"), [
    *((path, Owner("pod", POD), True) for path in POD_PATHS),
    *((path, Owner("pod", POD), False) for path in BESIDE),
    *((path, Owner("container", CONTAINER), True) for path in CONTAINER_PATHS),
])  # fmt: skip
def test_pods_and_containers(path: str, owner: Owner, made: bool, node: Node) -> None:
    """Groups of kubelet, Docker, Podman and containerd name pod and container, even by a path that leads upwards."""
    assert node.owner_in(path, made=made) == (owner, CONTAINER)


@pytest.mark.parametrize(("path", "hierarchy", "expected"), [
    (STEP, "", ("slurm", "4711")),
    ("/system.slice/node-a_slurmstepd.scope/job_4711/step_batch/user/task_0", "", ("slurm", "4711")),
    ("/slurm/uid_1000/job_4711/step_0/task_0", "memory", ("slurm", "4711")),
    ("/slurm_node-a/uid_1000/job_4711", "cpu,cpuacct", ("slurm", "4711")),
    ("/pbs_jobs.service/jobid/12.server", "", ("pbs", "12.server")),
    ("/pbspro.slice/pbspro-12.server.slice", "memory", ("pbs", "12.server")),
    (r"/pbspro.slice/pbspro-12\x5b3\x5d.pbs\x2dserver.slice", "memory", ("pbs", "12[3].pbs-server")),
    ("/lsf/cluster1/job.4711.3100.1700000000", "memory", ("lsf", "4711")),
])  # fmt: skip
def test_jobs(path: str, hierarchy: str, expected: tuple[str, str], node: Node) -> None:
    """The schedulers' control groups name the job."""
    scheduler, job_id = expected
    job = Owner("job", f"{scheduler}/{job_id}", scheduler=scheduler, job_id=job_id, proof="cgroup")
    assert node.owner_in(path, hierarchy=hierarchy) == (job, "")


LOGIN = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "path", ["/", "/user.slice", LOGIN, *(LOGIN + path for path in (STEP, *POD_PATHS, f"/docker/{CONTAINER}"))]
)
def test_a_users_own_groups_prove_nothing(path: str, node: Node) -> None:
    """A process in a group below a login session belongs to its user, whatever the group's name."""
    assert node.owner_in(path, made=path != "/") == (Owner("user", "1000"), "")


@pytest.mark.parametrize("path", [STEP, *POD_PATHS, f"/docker/{CONTAINER}"])
def test_a_directory_that_is_not_roots_proves_nothing(path: str, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that another user made, or that does not exist, is no proof: the process belongs to its user."""
    monkeypatch.setattr(ownership, "ROOT_UID", os.geteuid() + 1)
    assert node.owner_in(path) == (Owner("user", "1000"), "")
    monkeypatch.setattr(ownership, "ROOT_UID", os.geteuid())
    assert Node(node.sys.parent / "other").owner_in(path, made=False) == (Owner("user", "1000"), "")


def test_a_pod_inside_a_pod_is_the_outer_one() -> None:
    """The pod nearest the root is the owner, whatever names a container gives its own groups."""
    other = POD.replace("c7", "ff")
    owner_group = group_of(f"/kubepods/burstable/pod{POD}/pod{other}/{CONTAINER}")
    assert owner_group == Group("pod", POD, "", f"/kubepods/burstable/pod{POD}")
    assert group_of(f"/kubepods/pod{POD}/{CONTAINER}/pod{other}") == Group("pod", POD, CONTAINER, f"/kubepods/pod{POD}")


def test_a_pods_namespace_is_that_of_its_logs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace comes from the directory of the pod's logs; pods of one namespace are one owner."""
    (node.log / f"pods/team-a_trainer-0_{POD}").mkdir(parents=True)
    owner, _ = node.owner_in(POD_PATHS[0])
    assert (owner.namespace, owner.key) == ("team-a", "namespace/team-a")
    assert owner.key != Owner("pod", POD).key
    assert MAX_PODS == 4096
    for bound, owner_group in ((1, "team-a"), (0, "")):
        monkeypatch.setattr(ownership, "MAX_PODS", bound)
        assert node.owner(100)[0].namespace == owner_group


def test_a_pods_name_by_another_user_is_ignored(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log directory that root does not own names no pod."""
    (node.log / f"pods/team-a_trainer-0_{POD}").mkdir(parents=True)
    monkeypatch.setattr(ownership, "ROOT_UID", os.geteuid() + 1)
    beside = f"/../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CONTAINER}.scope"
    assert node.owner_in(beside, made=False) == (Owner("pod", POD), CONTAINER)


def tree(node: Node, *chain: dict[str, object]) -> Owner:
    """Return the owner of the last process in a chain that begins with a child of init."""
    for number, state in enumerate(chain):
        node.proc.add(100 + number, parent=1 if number == 0 else 99 + number, **state)  # type: ignore[arg-type]
    return node.owner(99 + len(chain))[0]


DAEMON: dict[str, object] = {"title": "slurmstepd-wlm: [4711.0]", "uid": 0}
TASK: dict[str, object] = {"title": "python train.py", "uid": 1000}
OF_4711 = Owner("job", "slurm/4711", scheduler="slurm", job_id="4711", proof="parent")
A_USERS = Owner("user", "1000")


@pytest.mark.parametrize(("chain", "expected"), [
    ((DAEMON, TASK), OF_4711),
    ((DAEMON | {"title": "slurmstepd: [4711.batch]"}, TASK, TASK), OF_4711),
    (({"title": "slurmd", "uid": 0}, DAEMON, TASK), OF_4711),
    ((TASK,), A_USERS),
    ((DAEMON | {"uid": 1000}, TASK), A_USERS),
    ((TASK, DAEMON, TASK), A_USERS),
    ((DAEMON | {"cgroup": "0::/user.slice/user-1000.slice/session-1.scope\n"}, TASK), A_USERS),
    ((DAEMON | {"cgroup": "0::/../../user.slice/user-1000.slice/session-1.scope\n"}, TASK), A_USERS),
    *((({"title": "shim", "uid": 0}, DAEMON | {"cgroup": f"0::{path}\n"}, TASK | {"uid": 0}), A_USERS)
      for path in (POD_PATHS[0], CONTAINER_PATHS[1])),  # root in a container can have any title
    ((DAEMON | {"title": "x slurmstepd: [4711.0]"}, TASK), A_USERS),
    ((DAEMON, *[TASK] * (MAX_ANCESTORS - 1)), OF_4711),
    ((DAEMON, *[TASK] * (MAX_ANCESTORS + 1)), A_USERS),
])  # fmt: skip
def test_slurms_daemon_as_an_ancestor(chain: tuple[dict[str, object], ...], expected: Owner, node: Node) -> None:
    """A slurmstepd ancestor proves the job if it and its ancestors are root, outside containers and login sessions."""
    assert tree(node, *chain) == expected
