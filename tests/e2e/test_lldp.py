"""rankwatch-lldp.service in a booted machine: its sandbox permits lldpd's socket, which another user owns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from booted import UNITS, boot, install, layered, why_not_booted
from full import full

SERVICE = "rankwatch-lldp.service"
ANSWER = '{"lldp": []}'
LLDPD = f"""\
import grp, os, pwd, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/lldpd.socket")
os.chmod("/run/lldpd.socket", 0o770)
os.chown("/run/lldpd.socket", pwd.getpwnam("nobody").pw_uid, grp.getgrnam("nogroup").gr_gid)
listener.listen()
while True:
    connection, _ = listener.accept()
    connection.sendall(b'{ANSWER}')
    connection.close()
"""
LLDPCLI = """\
#!/opt/rankwatch/bin/python
import socket, sys
assert sys.argv[1:] == ["-f", "json0", "show", "neighbors"], sys.argv
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/lldpd.socket")
    sys.stdout.write(connection.recv(4096).decode())
"""
DAEMON = """\
[Unit]
Before=rankwatch-lldp.service
[Service]
ExecStart=/opt/rankwatch/bin/python -B /opt/lldpd.py
ExecStartPost=/bin/sh -c 'until test -S /run/lldpd.socket; do sleep 0.1; done'
"""
LOOK = "cat /run/rankwatch/lldp.json; echo; stat -c %%a:%%U /run/rankwatch/lldp.json; systemctl status rankwatch-lldp"

pytestmark = [full, pytest.mark.skipif(why_not_booted() is not None, reason=why_not_booted() or "")]


@pytest.mark.timeout(300)
def test_what_lldpd_has_heard_is_written(tmp_path: Path) -> None:
    """The service writes lldpd's reply, from a socket of lldpd's user, to a file that the agent can read."""
    with layered(tmp_path) as root:
        install(root, ())
        (root / "opt/lldpd.py").write_text(LLDPD)
        program = root / "usr/bin/lldpcli"
        program.write_text(LLDPCLI)
        program.chmod(0o755)
        units = {"lldpd.service": DAEMON, SERVICE: (UNITS / SERVICE).read_text()}
        shutil.copy(UNITS / "rankwatch-lldp.timer", root / "etc/systemd/system")
        said = boot(root, units, LOOK, 8)
    assert said.splitlines()[:2] == [ANSWER, "644:root"], said
