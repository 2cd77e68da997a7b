"""What the agent knows of the ranks on this node, and what exporters add.

RankSnapshot, RankView: all ranks, until the next change. PublishedProcess: one rank's process, frozen; ProcessKey: its
pid and start time. RankLabel: job id and rank as labels. ProcessFacts: what /proc said when the process was found.
Owner, OwnerKind, Proof, proof_of: who runs it, by what proof. Membership, UNKNOWN_RANK: a rank in a communicator.
ExitStatus, ending, in_words, JobEnd: how a process and a job ended. RankWriter: writes what an exporter knows of ranks.
WriterKey, is_record_file: which process writes a record file. Pauses, RankSpeed, RasSilence: evidence on progress,
speed and RAS. MarkRequest, MarkAnswer, mark: a user's marks through a socket.
"""

from agent.core.identity import UNKNOWN_RANK, Membership, ProcessKey, RankLabel, WriterKey
from agent.ranks import mark
from agent.ranks.mark import MarkAnswer, MarkRequest
from agent.ranks.naming.job_owners import proof_of
from agent.ranks.rank.evidence import Pauses, RasSilence
from agent.ranks.rank.exit_status import ExitStatus, JobEnd, ending, in_words
from agent.ranks.rank.facts import Owner, OwnerKind, ProcessFacts, Proof
from agent.ranks.records import is_record_file
from agent.ranks.snapshot import PublishedProcess, RankSnapshot, RankView
from agent.ranks.speeds import RankSpeed
from agent.ranks.writer import RankWriter
