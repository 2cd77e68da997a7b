"""The ranks on this node, and exporters' evidence about them.

RankSnapshot, RankView: a frozen copy of all ranks. local_ranks: a job's ranks by host name and local rank; HOSTNAME:
the variable with a host name. PublishedProcess: a frozen copy of a rank's process; ProcessKey: pid and start time of a
process. RankLabel: job id and rank as labels. ProcessFacts: facts about a process from /proc. Owner, OwnerKind, Proof,
proof_of: the owner of a process and the proof of its job. Membership: a rank in a communicator. UNKNOWN_RANK: the label
of an unknown rank. ExitStatus, ending, in_words, JobEnd: the end of a process and of a job. RankWriter: writes an
exporter's evidence. WriterKey, is_record_file: the writer of a record file. Pauses, RankSpeed, RasSilence: evidence of
a rank's progress, of its speed, and from RAS. UNRESPONSIVE: reasons in words. MarkRequest, MarkAnswer, mark: marks of
users through a socket.
"""

from agent.core.identity import UNKNOWN_RANK, Membership, ProcessKey, RankLabel, WriterKey
from agent.ranks import mark
from agent.ranks.mark import MarkAnswer, MarkRequest
from agent.ranks.naming.job_owners import proof_of
from agent.ranks.rank.evidence import UNRESPONSIVE, Pauses, RasSilence
from agent.ranks.rank.exit_status import ExitStatus, JobEnd, ending, in_words
from agent.ranks.rank.facts import Owner, OwnerKind, ProcessFacts, Proof
from agent.ranks.records import is_record_file
from agent.ranks.snapshot import HOSTNAME, PublishedProcess, RankSnapshot, RankView, local_ranks
from agent.ranks.speeds import RankSpeed
from agent.ranks.writer import RankWriter
