"""Files of jobs: found by pattern, followed with a fair share per owner, and read as lines.

TextExporter: base of an exporter of jobs' text files; SavedTexts: section of the checkpoint of such an exporter;
FORGET_SECONDS: how long the section keeps jobs without ranks. PathPatterns, compiled_path_pattern: patterns of paths.
JobTexts: follows text files of jobs; JobLines: new lines of a file. TextFiles, TextLines, Follower, Listing,
FollowedFile: the parts of JobTexts. jobs_in_turns: jobs on this node, owners in turn. Position, SavedPositions: read
positions for the checkpoint. ChangedFiles, read_changed, FileVersion: small files, read completely when they change.
HangGuard: type of Context.hangs. FairTable, Share: a table with a limit and fair eviction; in_turns: items in the order
of turns of their owners; newest: files in turns of their users. atoi, strtoll: numbers as C programs parse them.
"""

from agent.core.hosts import atoi, strtoll
from agent.export.bases import FORGET_SECONDS, SavedTexts, TextExporter, jobs_in_turns
from agent.export.job_texts import JobLines, JobTexts, PathPatterns, SavedPositions
from agent.system.whole_file import ChangedFiles, FileVersion, read_changed
from agent.tail.file import FollowedFile, Position
from agent.tail.follower import Follower
from agent.tail.hang_guard import HangGuard
from agent.tail.listing import Listing
from agent.tail.patterns import compiled_path_pattern
from agent.tail.shares import FairTable, Share, in_turns
from agent.tail.text_files import TextFiles, TextLines, newest
