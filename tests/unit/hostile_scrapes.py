"""A program that scrapes without end, with a new query each time: `hostile_scrapes.py PORT UID EXPORTER...`.

Prints a line when every connection has sent its first query. Imports nothing of the repository, so that any user can
run it."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import suppress

CONNECTIONS = 200
ENCODINGS = ("gzip", "identity", "x-gzip;q=0.1", "gzip;q=0", "br, gzip;q=0.5", "")
FORMATS = ("text/plain", "application/openmetrics-text;version=1.0.0", "*/*")


def question(dice: random.Random, exporters: list[str]) -> bytes:
    """Return a random scrape: some exporters or all but some, in any format and encoding, or an invalid query."""
    kinds = dice.choice((["collect[]"], ["exclude[]"], ["wrong[]"], ["exclude[]", "collect[]"]))
    values: dict[str, list[str]] = {"wrong[]": []}
    some = dice.sample(exporters, dice.randrange(1, len(exporters)))
    query = "&".join(f"{kind}={value}" for kind in kinds for value in values.get(kind, some))
    head = f"GET /metrics?{query} HTTP/1.1\r\nHost: h\r\nAccept: {dice.choice(FORMATS)}\r\n"
    return f"{head}Accept-Encoding: {dice.choice(ENCODINGS)}\r\n\r\n".encode()


async def ask_without_end(dice: random.Random, port: int, exporters: list[str], began: asyncio.Semaphore) -> None:
    """Send queries on one connection without end; open a new one when the server closes it."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(question(dice, exporters))
                began.release()
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                unread = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
                while unread > 0 and (data := await reader.read(min(unread, 1 << 20))):
                    unread -= len(data)


async def main() -> None:
    """Start the connections, as user UID."""
    port, uid, exporters = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if uid != os.geteuid():
        os.setuid(uid)
    began = asyncio.Semaphore(0)
    dice = random.Random(20_261_124)  # noqa: S311  # the same questions each time
    tasks = [asyncio.create_task(ask_without_end(dice, port, exporters, began)) for _ in range(CONNECTIONS)]
    for _ in tasks:
        await began.acquire()
    sys.stdout.write("all have asked\n")
    sys.stdout.flush()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(main())
