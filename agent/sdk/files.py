"""Files that jobs write: found by pattern, followed for each owner with a fair share, and read as lines.

TextExporter: the base of an exporter that follows text files of jobs; SavedTexts: its part of the checkpoint.
PathPatterns, compiled_path_pattern: where files may lie. JobTexts: follows text files of jobs; JobLines: its new
lines. TextFiles, TextLines, Follower, FollowedFile: the parts that it is made of. Position, SavedPositions: how far a
file was read, for the checkpoint. ChangedFiles: whole small files, read again when they change. FairTable,
Holdings, Share, ShareOf, share_of: a bounded table with fair eviction. atoi, strtoll: numbers as C programs parse
them.
"""

from agent.core.hosts import atoi as atoi, strtoll as strtoll
from agent.export.bases import SavedTexts as SavedTexts, TextExporter as TextExporter
from agent.export.job_texts import (
    JobLines as JobLines,
    JobTexts as JobTexts,
    PathPatterns as PathPatterns,
    SavedPositions as SavedPositions,
)
from agent.system.whole_file import ChangedFiles as ChangedFiles
from agent.tail.file import FollowedFile as FollowedFile, Position as Position
from agent.tail.follower import Follower as Follower
from agent.tail.patterns import compiled_path_pattern as compiled_path_pattern
from agent.tail.shares import (
    FairTable as FairTable,
    Holdings as Holdings,
    Share as Share,
    ShareOf as ShareOf,
    share_of as share_of,
)
from agent.tail.text_files import TextFiles as TextFiles, TextLines as TextLines
