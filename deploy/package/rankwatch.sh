#!/bin/sh
# /usr/bin/rankwatch: the program below /usr/lib/rankwatch, with the newest Python of this machine that it is built for.
# -I: nothing of the caller's environment or directory is imported.
for python in /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do
    if [ -x "$python" ]; then exec "$python" -I /usr/lib/rankwatch/start.py "$@"; fi
done
echo "rankwatch: needs Python 3.11, 3.12 or 3.13 in /usr/bin; on older systems use the container (docs/containers.md)" >&2
exit 1
