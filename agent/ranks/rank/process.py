"""A rank process: the evidence about it, and the facts derived from it. Pure."""

import os
from signal import SIGKILL

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import Membership, ProcessKey, RankLabel, label_fields
from agent.core.log import Logger
from agent.hardware.inventory import Hardware
from agent.ranks.rank.environment import Claim
from agent.ranks.rank.evidence import RankVerdict, RasSilence, State, VerdictReason
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import UNSEEN, Owner, ProcessFacts
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

MAX_MEMBERSHIPS, LEAST_MEMBERSHIPS = 256, 16
"""Limits of a process' memberships in communicators: the usual limit, and the limit on a node with many processes."""
MAX_RANKS = 64
"""Limit of a process' ranks: eight MI300X in CPX mode have 64 partitions."""
FUTURE_SLACK_SECONDS = 2.0
"""A record's time can lie at most this far in the future; a later time is reduced to this limit."""
SIGN_OF_LIFE_SECONDS = 5.0
"""A record that is this much newer than the first RAS report without its process is a sign of life."""

_LOG = Logger("ranks")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
RAY_TITLE, RAY_ENDS = "ray::", ExitStatus(known=True, code=1)
"""Prefix of a Ray worker's title, and the exit status of a worker that Ray ends. An exception ends no Ray worker."""
SHARED_SOURCES = frozenset({"title", "local_index"})
"""Sources of rank labels of processes in one task: their environment has the task's numbers, not their own."""


class RankGpu(msgspec.Struct, frozen=True):
    """A GPU that a process uses: the driver's index, UUID, PCI address, and the nearest NIC (empty if unknown)."""

    index: int
    uuid: str
    pci: str = ""
    nic: str = ""


class RankProcess(msgspec.Struct):
    """A process of one or several ranks. Without ``facts`` it stands for an unseen process that wrote records.

    ``slots``: its labels once assigned, in the order of its ranks in its largest communicator; None for a label that
    another live process holds. ``plain_job_id``: the job's id without the owner's suffix. ``shown_job_id``: the
    exported id, with the suffix if another owner has the plain id. ``state``: the kernel's letter. ``blocked_since``:
    when a thread that NCCL needs was first seen in state D with its current context-switch count. ``unproven_since``:
    when the process was last seen running, if no exporter has observed it since. ``gpus``: the GPUs that it uses, or
    last used. ``oom_logged``: the kernel's log says that the OOM killer sent the process SIGKILL.
    ``ended_by_scheduler``: the process exited because the scheduler ended the job. ``is_victim``: the exit is no lead
    exit, because it followed another exit or the limit of lead exits was reached. Times ending in ``_at`` or ``_since``
    are monotonic.
    """

    found_at: SavedSeconds
    facts: ProcessFacts | None = None
    claim: Claim = Claim()
    members: dict[tuple[str, int], Membership] = {}
    seen_at: dict[str, SavedSeconds] = {}
    slots: list[RankLabel | None] | None = None
    source: str = ""
    plain_job_id: str = ""
    shown_job_id: str = ""
    exited_at: SavedSeconds | None = None
    exited_seconds: SavedSeconds = 0.0
    exception: str = ""
    exit: ExitStatus | None = None
    state: str = "S"
    blocked_since: SavedSeconds | None = None
    kill_pending: bool = False
    finalized: bool = False
    progress_seconds: SavedSeconds | None = None
    confirmed: bool = True
    unproven_since: SavedSeconds | None = None
    verdict: RankVerdict | None = None
    silence: RasSilence | None = None
    gpus: tuple[RankGpu, ...] = ()
    oom_logged: bool = False
    ended_by_scheduler: bool = False
    is_victim: bool = False

    @property
    def seen(self) -> ProcessFacts:
        """Return the process' facts from /proc; UNSEEN if the process was never seen. Every exported rank was seen."""
        return self.facts or UNSEEN

    @property
    def started_at(self) -> float:
        """Return when the process started, in seconds since the boot."""
        return self.found_at if self.facts is None else self.facts.key.start_ticks / _TICKS_PER_SECOND

    @property
    def owner(self) -> Owner:
        """Return the process' owner; an owner without a name if the process was never seen."""
        return self.seen.owner

    @property
    def labels(self) -> tuple[RankLabel, ...]:
        """Return the process' labels; empty before they are assigned."""
        return tuple(label for label in self.slots or () if label is not None)

    @property
    def user(self) -> str:
        """Return the process' user, or for a pod the namespace, as most pods run as root; empty if unknown."""
        if self.facts is None:
            return ""
        if self.owner.kind == "pod" and self.owner.namespace:
            return self.owner.key
        return self.facts.user or ("" if self.facts.uid is None else f"uid {self.facts.uid}")

    @property
    def share(self) -> str:
        """Return the name under which limits count the process: its container, else its user."""
        return self.owner.key if self.owner.kind == "container" else self.user

    @property
    def scheduled_job_id(self) -> str:
        """Return the id of its scheduler's job: the proven id, else the claimed id; empty without a scheduler."""
        if self.owner.scheduler:
            return self.owner.job_id
        return self.claim.job_id if self.claim.scheduler else ""

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks of the job from the process' own environment; None if unknown."""
        return None if self.has_anothers_environment() else self.claim.world_size

    def has_anothers_environment(self) -> bool:
        """Return True if the environment names the rank of the task, and not the rank of this process."""
        if self.source in SHARED_SOURCES:
            return True
        named, claimed = [label.rank for label in self.labels], self.claim.rank
        return self.source == "communicator" and claimed is not None and named not in ([], [str(claimed)])

    @property
    def local_rank(self) -> str:
        """Return the local rank from the process' own environment; empty if unknown."""
        return "" if self.has_anothers_environment() else self.claim.local_rank

    def join(self, membership: Membership, now: float, limit: int = MAX_MEMBERSHIPS) -> bool:
        """Note the process' membership in a communicator at monotonic time ``now``; return False at the ``limit``.

        A rank number in the world communicator that is in no published label is logged.
        """
        key = (membership.comm, membership.comm_rank)
        known = self.members.get(key)
        if known is not None:
            if membership.name and not known.name:  # records have the name of a communicator, RAS does not
                self.members[key] = membership
            return True
        if len(self.members) >= limit:
            return False
        self.members[key] = membership
        self.seen_at.setdefault(membership.comm, now)
        is_new = all(label.rank != str(membership.comm_rank) for label in self.labels)
        if self.slots and membership.size == self.claim.world_size and is_new:
            self.log_contradiction(str(membership.comm_rank))
        return True

    def log_contradiction(self, rank: str) -> None:
        """Log that records name a rank that is not among the labels; the labels stay."""
        fields = label_fields(self.labels)
        _LOG.warning("records name another rank: the process keeps its rank", records=rank, user=self.user, **fields)

    def leave(self, now: float, now_seconds: float) -> None:
        """Note the process' exit at monotonic time ``now`` and epoch time ``now_seconds``."""
        self.exited_at, self.exited_seconds = now, now_seconds
        self.confirmed, self.verdict = True, None

    def note_status(self, status: ExitStatus | None) -> None:
        """Note the exit status. SIGKILL or an unknown status is an OOM kill if the kernel's log reported one."""
        if status is not None and status.known:
            is_rays = self.seen.title.startswith(RAY_TITLE) and status == RAY_ENDS
            self.exit = msgspec.structs.replace(status, by_launcher=True) if is_rays else status
        is_open = self.exit is None or not self.exit.known or self.exit.signal == SIGKILL
        if self.oom_logged and is_open:
            self.exit = ExitStatus(known=True, signal=SIGKILL, oom=True)

    def note_job_end(self, end: JobEnd, thresholds: Thresholds = DEFAULTS) -> bool:
        """Note how the scheduler ended its job; return True if this changes ``ended_by_scheduler``."""
        if self.exited_at is None:
            return False
        before = self.ended_by_scheduler
        self.ended_by_scheduler = end.explains(self.exited_seconds, self.exit, thresholds)
        return self.ended_by_scheduler != before

    def note_progress(self, seconds: float, now_seconds: float) -> None:
        """Note that the process completed an operation at this time (epoch seconds); an earlier time changes nothing.

        A time in the future is reduced: the record is damaged, or the clock was set back.
        """
        self.progress_seconds = min(max(self.progress_seconds or 0.0, seconds), now_seconds + FUTURE_SLACK_SECONDS)

    def note_gpus(self, hardware: Hardware, pid: int) -> None:
        """Note which GPUs the process uses. A GPU whose processes the driver cannot list now (a lost GPU) stays."""
        if used := hardware.gpus_of(pid):
            gpus = {gpu.uuid: gpu for gpu in self.gpus if hardware.is_unseen(gpu.uuid)}
            for gpu in used:
                gpus[gpu.uuid] = RankGpu(gpu.index, gpu.uuid, gpu.pci, hardware.nic_of(gpu))
            self.gpus = tuple(sorted(gpus.values(), key=lambda gpu: gpu.index))

    def has_no_records(self, since: float) -> bool:
        """Return True if the process runs, has no record, and was discovered before monotonic time ``since``."""
        runs = self.exited_at is None and self.confirmed
        return runs and self.found_at <= since and self.progress_seconds is None

    def is_surely_a_rank(self) -> bool:
        """Return True if the process initialised NCCL. A mapped library and a used GPU do not prove a rank."""
        return self.seen.evidence in ("thread", "records")

    def pid_rank(self) -> list[str]:
        """Return the rank [``pid-N``] if the process initialised NCCL and has a readable environment, else []."""
        is_named = self.seen.environment is not None and self.is_surely_a_rank()
        return [f"pid-{self.key.pid}"] if is_named else []

    def ranks(self, unique: bool) -> tuple[list[str], str]:
        """Return the process' global ranks and their source (environment or communicator); an empty list if unknown.

        The environment names one rank. The communicator names the ranks if the process has several ranks, or if other
        processes claim the same rank (``unique`` False).
        """
        world = self.world()
        local = self.local_ranks(world.comm)[:MAX_RANKS] if world is not None else []
        if self.claim.rank is not None and len(local) <= 1 and (unique or not local):
            return [str(self.claim.rank)], "environment"
        return [str(rank) for rank in local], "communicator"

    @property
    def key(self) -> ProcessKey:
        """Return the process' pid and start time; zeros if the process was never seen."""
        return self.seen.key

    @property
    def shown_state(self) -> State:
        """Return the state of the last verdict; before the first verdict, ``alive`` or ``exited``."""
        if self.verdict is not None:
            return self.verdict.state
        return "alive" if self.exited_at is None else "exited"

    @property
    def judged(self) -> VerdictReason | None:
        """Return the reason of the last verdict. Records of peers that led to this verdict can have expired since."""
        return None if self.verdict is None else self.verdict.reason

    def ras_silence(self) -> RasSilence | None:
        """Return the RAS reports without this process, marked as contradicted if newer records are a sign of life."""
        silence = self.silence
        if silence is None or self.progress_seconds is None:
            return silence
        if self.progress_seconds <= silence.since_seconds + SIGN_OF_LIFE_SECONDS:
            return silence
        return msgspec.structs.replace(silence, contradicted=True)

    def local_ranks(self, comm: str) -> list[int]:
        """Return this process' ranks in ``comm``, in ascending order."""
        return sorted(rank for name, rank in self.members if name == comm)

    def slot_of(self, comm: str, comm_rank: int) -> int | None:
        """Return the index in ``slots`` of its rank ``comm_rank`` of communicator ``comm``; None if unknown."""
        if len(self.slots or ()) == 1:
            return 0
        local = self.local_ranks(comm)
        return local.index(comm_rank) if len(local) == len(self.slots or ()) and comm_rank in local else None

    def world(self) -> Membership | None:
        """Return the process' membership of its largest communicator (of equal sizes, the smallest hash), or None."""
        return min(self.members.values(), key=lambda m: (-m.size, m.comm, m.comm_rank), default=None)
