"""What the agent knows of the ranks on this node, and what exporters add.

RankView, RankSnapshot: all ranks, frozen. RankProcess: one rank's process; ProcessKey: its pid and start time.
RankLabel: job id and rank as labels. ProcessFacts: what /proc said when the process was found. Owner, OwnerKind,
Proof: who runs it and how that is known. JobUsers: owner names. Membership, UNKNOWN_RANK: a rank in a communicator.
ExitStatus, ending, in_words, JobEnd: how a process and a job ended. RankTable: where exporters write their evidence.
WriterKey, is_record_file: which process writes a record file. Pauses, RankSpeed, RasSilence: evidence on progress,
speed and RAS. MarkRequest, MarkAnswer, mark: a user's marks through a socket.
"""

from agent.core.identity import (
    UNKNOWN_RANK as UNKNOWN_RANK,
    Membership as Membership,
    ProcessKey as ProcessKey,
    RankLabel as RankLabel,
    WriterKey as WriterKey,
)
from agent.ranks import mark as mark
from agent.ranks.mark import MarkAnswer as MarkAnswer, MarkRequest as MarkRequest
from agent.ranks.rank.evidence import Pauses as Pauses, RasSilence as RasSilence
from agent.ranks.rank.exit_status import (
    ExitStatus as ExitStatus,
    JobEnd as JobEnd,
    ending as ending,
    in_words as in_words,
)
from agent.ranks.rank.facts import ProcessFacts as ProcessFacts
from agent.ranks.rank.owner import Owner as Owner, OwnerKind as OwnerKind, Proof as Proof
from agent.ranks.rank.process import RankProcess as RankProcess
from agent.ranks.snapshot import JobUsers as JobUsers, RankSnapshot as RankSnapshot, RankView as RankView
from agent.ranks.speeds import RankSpeed as RankSpeed
from agent.ranks.table import RankTable as RankTable
from agent.ranks.writers import is_record_file as is_record_file
