"""Files that jobs write: found by pattern, followed for each owner with a fair share, and read as lines.

TextExporter: the base of an exporter that follows text files of jobs; SavedTexts: its part of the checkpoint.
PathPatterns, compiled_path_pattern: where files may lie. JobTexts: follows text files of jobs; JobLines: its new
lines. TextFiles, TextLines, Follower, FollowedFile: the parts that it is made of. Position, SavedPositions: how far a
file was read, for the checkpoint. ChangedFiles, read_changed, FilePlace: whole small files, read again when they
change. FairTable, Share, ShareOf, share_of: a bounded table with fair eviction; in_turns: the owners one after the
other, newest: of files. atoi, strtoll: numbers as C programs parse them.
"""

from agent.core.hosts import atoi, strtoll
from agent.export.bases import SavedTexts, TextExporter
from agent.export.job_texts import JobLines, JobTexts, PathPatterns, SavedPositions
from agent.system.whole_file import ChangedFiles, FilePlace, read_changed
from agent.tail.file import FollowedFile, Position
from agent.tail.follower import Follower
from agent.tail.patterns import compiled_path_pattern
from agent.tail.shares import FairTable, Share, ShareOf, in_turns, share_of
from agent.tail.text_files import TextFiles, TextLines, newest
