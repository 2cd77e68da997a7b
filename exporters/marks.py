"""Marks: users' notes on their own jobs (`rankwatch mark`), for the time lines of dashboards.

Every user of the node may open the socket, and the kernel identifies the user. Users may mark only jobs in which they
have ranks on this node; root may mark all jobs.

Needs socket: to create the listening socket, and to identify its peers. Needs asyncio.start_unix_server: to listen.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import FairTable, Share
from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import MarkAnswer, MarkRequest, mark as mark_socket

MAX_CONNECTIONS = 8
"""Limit of open connections; at the limit the user with most connections loses the oldest."""
ANSWER_SECONDS = 2.0
"""How long a user may take to send a line."""
MAX_REQUESTS = 120
"""Limit of requests per user between two updates. Further connections are closed unread: a request costs a log line."""
MAX_REQUESTING_USERS = 1024
"""Limit of users with requests between two updates: one person can have 65,536 uids (subuid(5)). At the limit only root
and users with ranks on this node are served."""
_CREDENTIALS = struct.Struct("3i")
"""Pid, uid and gid of the process that opened the socket (SO_PEERCRED, unix(7))."""

MAX_MARKS = 256
"""Limit of all users' marks on a node; at the limit the user with most marks loses the oldest."""
MAX_MARKS_PER_JOB = 8
MARKS_PER_MINUTE = 6
"""Limit per user."""
MINUTE_SECONDS = 60.0
SHOWN_SECONDS = 3600.0
"""A mark is a point in time: it is shown for this long, enough for every scrape."""
ROOT = 0

MARK = Family(
    "rankwatch_job_mark_timestamp_seconds",
    "gauge",
    "Time when the job's owner or root set a mark by `rankwatch mark`; text is the mark's text. Shown for an hour.",
    ("job_id", "text"),
    "8 per job at most, 256 per node",
)


class Mark(NamedTuple):
    """A mark of a job."""

    job_id: str
    text: str


class _MarkTimes(NamedTuple):
    at_seconds: float
    expires_at: float


class RecentMarks:
    """The marks of the last hour; the caller gives all times."""

    def __init__(self) -> None:
        self._marks: FairTable[Mark, _MarkTimes] = FairTable()
        self._recent: dict[int, deque[float]] = {}

    def add(self, request: MarkRequest, uid: int, owners: Mapping[str, frozenset[int]], now: float, at: float) -> str:
        """Set a mark at epoch time ``at``; return why it was refused, or "".

        ``owners``: the users of each job with ranks on this node. ``now``: monotonic.
        """
        if not request.text.isprintable() or not request.text.strip():
            return "the text is not printable"
        users = owners.get(request.job_id)
        if users is None:
            return f"no rank of job {request.job_id} runs on this node"
        if uid not in (ROOT, *users):
            return f"job {request.job_id} is another user's"
        recent = self._recent.setdefault(uid, deque(maxlen=MARKS_PER_MINUTE))
        if len(recent) == MARKS_PER_MINUTE and now - recent[0] < MINUTE_SECONDS:
            return f"more than {MARKS_PER_MINUTE} marks a minute"
        recent.append(now)
        self._put(Mark(request.job_id, request.text), Share(uid, request.job_id), _MarkTimes(at, now + SHOWN_SECONDS))
        return ""

    def expire(self, now: float) -> None:
        """Forget the marks that were shown for SHOWN_SECONDS."""
        for mark in [mark for mark, times in self._marks.items() if times.expires_at <= now]:
            self._marks.pop(mark)
        self._recent = {uid: times for uid, times in self._recent.items() if now - times[-1] < MINUTE_SECONDS}

    def marks(self) -> dict[Mark, float]:
        """Return the marks, and when each was set."""
        return {mark: times.at_seconds for mark, times in self._marks.items()}

    def _put(self, mark: Mark, share: Share, times: _MarkTimes) -> None:
        self._marks.pop(mark)
        of_job = [known for known, _ in self._marks.items() if known.job_id == mark.job_id]
        if len(of_job) >= MAX_MARKS_PER_JOB:
            self._marks.pop(of_job[0])
        if len(self._marks) >= MAX_MARKS:
            marks_of_loser = iter(self._marks.of(self._marks.losing_share(share)))
            oldest, _ = self._marks.items()[0]
            self._marks.pop(next(marks_of_loser, oldest))  # the oldest mark if each user has one
        self._marks.put(mark, times, share)


class MarksExporter:
    """Takes marks over the socket and exports them."""

    def __init__(self, _config: ExporterConfig) -> None:
        self._recent_marks = RecentMarks()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, int] = {}
        self._requests: Counter[int] = Counter()

    async def start(self, ctx: Context) -> None:
        """Prepare the thread; the first update opens the socket."""
        self._ctx = ctx
        self._path = ctx.roots.run / mark_socket.SOCKET
        self._thread = ctx.thread("marks")

    async def update(self) -> None:
        """Listen, and forget old marks; NoData if the service has no directory for the socket."""
        if self._server is None:
            if not await self._thread.call(self._path.parent.is_dir):
                raise NoData
            if not self._ctx.once:
                listener = await self._thread.call(self._listener)
                self._server = await asyncio.start_unix_server(
                    self._serve, sock=listener, limit=mark_socket.MAX_REQUEST_BYTES
                )
        self._requests.clear()
        self._recent_marks.expire(self._ctx.clock.monotonic())

    def _listener(self) -> socket.socket:
        """Return the socket, open to every user: the kernel identifies the user. Blocking."""
        self._path.unlink(missing_ok=True)  # left by a killed agent
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o666)
        except BaseException:
            listener.close()
            raise
        return listener

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _uid(writer)
        if not self._may_request(uid):
            writer.close()
            return
        if len(self._open) >= MAX_CONNECTIONS:
            self._close_one(uid)
        self._open[writer] = uid
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if line := await reader.readline():  # b"" from a connection that _close_one closed
                    writer.write(msgspec.json.encode(MarkAnswer(self._answer(line, uid))) + b"\n")
                    await writer.drain()
        except (TimeoutError, OSError, ValueError):  # the peer is too slow, gone, or sends too long a line
            pass
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _close_one(self, uid: int) -> None:
        """Close the oldest connection of the user with most connections; ``uid`` counts with one more."""
        counts = Counter((uid, *self._open.values()))
        most = max(counts.values())
        oldest = next(writer for writer, owner in self._open.items() if counts[owner] == most)
        del self._open[oldest]
        oldest.transport.abort()

    def _may_request(self, uid: int) -> bool:
        is_full = uid not in self._requests and len(self._requests) >= MAX_REQUESTING_USERS
        if is_full and uid not in {ROOT}.union(*self._owners().values()):
            return False
        self._requests[uid] += 1
        return self._requests[uid] <= MAX_REQUESTS

    def _answer(self, line: bytes, uid: int) -> str:
        try:
            request = msgspec.json.decode(line, type=MarkRequest)
        except msgspec.MsgspecError as error:
            return str(error)
        clock = self._ctx.clock
        refused = self._recent_marks.add(request, uid, self._owners(), clock.monotonic(), clock.time())
        message = "a mark was refused: {why}" if refused else "a mark was set"
        self._ctx.log.info(message, job_id=request.job_id, uid=uid, why=refused)
        return refused

    def _owners(self) -> dict[str, frozenset[int]]:
        """Return the users of each job with ranks on this node."""
        owners: dict[str, frozenset[int]] = {}
        for view in self._ctx.ranks.snapshot().ranks:
            uid, job_id = view.uid, view.label.job_id
            if uid is not None and view.process.exited_at is None:
                owners[job_id] = owners.get(job_id, frozenset()) | {uid}
        return owners

    def snapshot(self) -> dict[Mark, float]:
        """Return the marks, and when each was set (epoch)."""
        return self._recent_marks.marks()

    def families(self, snapshot: dict[Mark, float]) -> Iterable[Metric]:
        """Return the series of the marks. Pure."""
        rows = MARK.rows()
        for mark, seconds in snapshot.items():
            rows.add(mark, seconds)
        yield rows.metric

    async def drain(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            await self._thread.call(lambda: self._path.unlink(missing_ok=True))


def _uid(writer: asyncio.StreamWriter) -> int:
    """Return the user who opened the connection, as reported by the kernel."""
    connected = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


SPEC = Spec(
    name="marks",
    config=ExporterConfig,
    build=MarksExporter,
    interval_seconds=60.0,
    deadline_seconds=10.0,
    families=(MARK,),
    series_cap=300,
)
