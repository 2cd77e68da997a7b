"""One rank process: what is known of it, and what follows from that. Pure."""

from signal import SIGKILL

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import Membership, ProcessKey, RankLabel, label_fields
from agent.core.log import Logger
from agent.hardware.inventory import Hardware
from agent.ranks.rank.environment import Claim
from agent.ranks.rank.evidence import RankVerdict, RasSilence, VerdictReason
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import UNSEEN, Owner, ProcessFacts
from agent.ranks.rank.numbers import NUMBERS, Numbers

MAX_MEMBERSHIPS = 256
SIGN_OF_LIFE_SECONDS = 5.0
"""Records may be that late: what is newer was made after RAS had missed the process."""

_LOG = Logger("ranks")
SHARED_SOURCES = frozenset({"title", "local_index"})
"""What names ranks whose environment is their task's: the rank, local rank and size in it are not theirs."""


class RankGpu(msgspec.Struct, frozen=True):
    """A GPU that a process uses: the driver's index, UUID, PCI address, and the NIC near it (empty: none is known)."""

    index: int
    uuid: str
    pci: str = ""
    nic: str = ""


class RankProcess(msgspec.Struct):
    """One process of one or several ranks, or (``facts`` None) a writer of records whose process was never seen.

    ``slots``: its labels once bound, in the order of their ranks in its largest communicator; a slot that repeats a
    label of another live process is None. ``plain_job_id``: its job's id before a suffix for its owner,
    ``shown_job_id``: with the owner's suffix if need be. ``state``: the kernel's letter. ``blocked_since``: when a
    thread that NCCL needs was first seen in D with the same context-switch count as now.
    ``unproven_since``: it ran at this time and was not seen to run later (the
    agent was away). ``gpus``: those it uses, or used when it was last seen to use any. ``oom_logged``: the kernel's log
    says that the OOM killer sent it SIGKILL. ``ended_by_scheduler``: its exit is its job's end, as the scheduler has
    that. ``is_victim``: its exit followed another one, or found no room, and is no lead exit. Times ending in ``_at``
    or ``_since`` are monotonic.
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
        """What /proc said of it, UNSEEN of a writer whose process was never seen; each shown rank has been."""
        return self.facts or UNSEEN

    @property
    def owner(self) -> Owner:
        """Whose it is; that of a writer whose process was never seen is not known."""
        return self.seen.owner

    @property
    def labels(self) -> tuple[RankLabel, ...]:
        """Its published labels; none while it has none."""
        return tuple(label for label in self.slots or () if label is not None)

    @property
    def user(self) -> str:
        """Its user, of a pod the namespace: in most of them all run as root. Empty where it is not known."""
        if self.facts is None:
            return ""
        if self.owner.kind == "pod" and self.owner.namespace:
            return self.owner.key
        return self.facts.user or ("" if self.facts.uid is None else f"uid {self.facts.uid}")

    @property
    def share(self) -> str:
        """Return the share of bounded tables that it counts in: its container's (most run as root), else its user's."""
        return self.owner.key if self.owner.kind == "container" else self.user

    @property
    def environment_readable(self) -> bool:
        """Return True when its environment could be read: the right that also shows its exit status."""
        return self.seen.environment is not None

    @property
    def scheduled_job_id(self) -> str:
        """The id of the scheduler's job that it is of, by the scheduler's proof, else as it claims; empty for none."""
        if self.owner.scheduler:
            return self.owner.job_id
        return self.claim.job_id if self.claim.scheduler else ""

    @property
    def world_size(self) -> int | None:
        """Return how many ranks the job has, as its own environment says; None where that does not."""
        return None if self.has_anothers_environment() else self.claim.world_size

    def has_anothers_environment(self) -> bool:
        """True when what its environment says of ranks is its task's: it has another number by all that is known."""
        if self.source in SHARED_SOURCES:
            return True
        named = [label.rank for label in self.labels]
        return (
            self.source == "communicator" and self.claim.rank is not None and named not in ([], [str(self.claim.rank)])
        )

    @property
    def local_rank(self) -> str:
        """Its rank on the node, as its own environment says; empty where that does not."""
        return "" if self.has_anothers_environment() else self.claim.local_rank

    def join(self, membership: Membership, now: float) -> bool:
        """Note a place in a communicator, first seen at monotonic time ``now``; False when there are MAX_MEMBERSHIPS.

        One that contradicts the published labels is logged.
        """
        place = (membership.comm, membership.comm_rank)
        known = self.members.get(place)
        if known is not None:
            if membership.name and not known.name:  # records know more of a communicator than RAS
                self.members[place] = membership
            return True
        if len(self.members) >= MAX_MEMBERSHIPS:
            return False
        self.members[place] = membership
        self.seen_at.setdefault(membership.comm, now)
        if self.contradicts(membership):
            self.log_contradiction(str(membership.comm_rank))
        return True

    def log_contradiction(self, rank: str) -> None:
        """Log that records name another rank; the process keeps its own."""
        fields = label_fields(self.labels)
        _LOG.warning("records call the process another rank: it keeps its own", records=rank, user=self.user, **fields)

    def leave(self, now: float, now_seconds: float) -> None:
        """Note that it is gone, at monotonic time ``now`` and ``now_seconds`` since the epoch."""
        self.exited_at, self.exited_seconds = now, now_seconds
        self.confirmed, self.verdict = True, None

    def note_status(self, status: ExitStatus | None) -> None:
        """Note how it ended, as far as ``status`` or the kernel's log tells."""
        if status is not None and status.known:
            self.exit = status
        is_open = self.exit is None or not self.exit.known or self.exit.signal == SIGKILL
        if self.oom_logged and is_open:
            self.exit = ExitStatus(known=True, signal=SIGKILL, oom=True)

    def note_job_end(self, end: JobEnd, numbers: Numbers = NUMBERS) -> bool:
        """Note how the scheduler ended its job; True where that changes how its exit is judged."""
        if self.exited_at is None:
            return False
        before = self.ended_by_scheduler
        self.ended_by_scheduler = end.explains(self.exited_seconds, self.exit, numbers)
        return self.ended_by_scheduler != before

    def note_progress(self, seconds: float) -> None:
        """Note that an operation was completed at this time (epoch seconds); an earlier one changes nothing."""
        self.progress_seconds = max(self.progress_seconds or 0.0, seconds)

    def note_gpus(self, hardware: Hardware, pid: int) -> None:
        """Note which GPUs it uses; what it used before the driver fell silent stays.

        A lost GPU stays too: the driver names no process of it any more, even if the process uses other GPUs.
        """
        if held := hardware.gpus_of(pid):
            gpus = {gpu.uuid: gpu for gpu in self.gpus if hardware.is_unseen(gpu.uuid)}
            for gpu in held:
                gpus[gpu.uuid] = RankGpu(gpu.index, gpu.uuid, gpu.pci, hardware.nic_of(gpu))
            self.gpus = tuple(sorted(gpus.values(), key=lambda gpu: gpu.index))

    def has_no_records(self, since: float) -> bool:
        """Return True when it runs, was found before monotonic time ``since``, and no record of it was seen."""
        runs = self.exited_at is None and self.confirmed
        return runs and self.found_at <= since and self.progress_seconds is None

    def is_surely_a_rank(self) -> bool:
        """Return True when it initialised NCCL; one that only uses a GPU and maps the library may be a notebook."""
        return self.seen.evidence in ("thread", "records")

    def pid_rank(self) -> list[str]:
        """Return the rank label of a process whose rank number is unknown, though its environment was read."""
        facts = self.facts
        if facts is None or facts.environment is None or not self.is_surely_a_rank():
            return []
        return [f"pid-{facts.key.pid}"]

    def ranks(self, unique: bool) -> tuple[list[str], str]:
        """The global ranks of the process and where they are from (environment, communicator); empty if not known.

        The environment names one rank, so for a process of several, or when siblings claim the same number
        (``unique`` False: then it is the node's), the communicator counts.
        """
        world = self.world()
        local = self.local_ranks(world.comm) if world is not None else []
        if self.claim.rank is not None and len(local) <= 1 and (unique or not local):
            return [str(self.claim.rank)], "environment"
        return [str(rank) for rank in local], "communicator"

    def contradicts(self, membership: Membership) -> bool:
        """Return True when a place in the world communicator is another rank than the published labels say."""
        if not self.slots or membership.size != self.claim.world_size:
            return False
        return all(label is None or label.rank != str(membership.comm_rank) for label in self.slots)

    @property
    def key(self) -> ProcessKey:
        """Return its pid and start; zeros where the process was never seen."""
        return self.seen.key

    @property
    def judged(self) -> VerdictReason | None:
        """Return the reason of its last verdict. What led to it may have left the table since, or been restarted."""
        return None if self.verdict is None else self.verdict.reason

    @property
    def progress_after_exit_seconds(self) -> float:
        """Return how long after the exit records of it were still written; 0 while it runs."""
        if self.exited_at is None or self.progress_seconds is None:
            return 0.0
        return self.progress_seconds - self.exited_seconds

    def ras_silence(self) -> RasSilence | None:
        """Which reports of RAS miss it; newer records are a sign of life."""
        silence = self.silence
        if silence is None or self.progress_seconds is None:
            return silence
        if self.progress_seconds <= silence.since_seconds + SIGN_OF_LIFE_SECONDS:
            return silence
        return msgspec.structs.replace(silence, contradicted=True)

    def local_ranks(self, comm: str) -> list[int]:
        """This process' ranks in ``comm``, in order."""
        return sorted(rank for name, rank in self.members if name == comm)

    def world(self) -> Membership | None:
        """A membership of its largest communicator (the smallest hash among equals)."""
        return min(self.members.values(), key=lambda m: (-m.size, m.comm, m.comm_rank), default=None)
