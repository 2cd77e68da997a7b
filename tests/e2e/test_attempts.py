"""What the agent's process may do to another one: each way tried in the booted unit, with each combination of drop-ins.

docs/security.md has a table of what is open.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from attempts_expected import FILTER, OTHER_USERS, WAYS
from booted import UNITS, boot, install, layered, why_not_booted

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
E2E = Path(__file__).parent
HARDWARE, RECLAIM = "55-hardware.conf", "60-reclaim.conf.example"
DROP_INS = (OTHER_USERS, HARDWARE, RECLAIM)
COMBINATIONS = [frozenset(each) for size in range(len(DROP_INS) + 1) for each in itertools.combinations(DROP_INS, size)]
UNFILTERED = frozenset({OTHER_USERS, "unfiltered"})
"""The control: the filter taken away. What it refused is done then, so that the refusal was the filter's."""
ATTEMPTED = """\
[Service]
Type=simple
ExecStart=/opt/rankwatch/bin/python -B /opt/attempted.py /opt/attacked.json
ExecStartPost=/bin/sh -c 'until test -e /opt/attacked.json; do sleep 0.1; done'
"""
SHOWN = "for each in /opt/*.answers; do echo $each $(cat $each); done; systemctl --failed --no-pager"

pytestmark = [
    pytest.mark.skipif(not FULL, reason="only with RANKWATCH_TEST_FULL=1"),
    pytest.mark.skipif(why_not_booted() is not None, reason=why_not_booted() or ""),
]


def unit_of(number: int, text: str) -> str:
    """The agent's unit, but for what it starts."""
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    tries = (
        "ExecStart=/opt/rankwatch/bin/python -B /opt/attempts.py /opt/attacked.json\n"
        f"StandardOutput=file:/opt/{number}.answers\nStandardError=file:/opt/{number}.answers"
    )
    text = text.replace("Type=notify", "Type=oneshot").replace("Restart=on-failure", "Restart=no")
    return "[Unit]\nAfter=attempted.service\n" + text.replace(start, tries)


def answers(directory: Path, combinations: Collection[frozenset[str]]) -> Iterator[dict[str, str]]:
    """What each combination is answered, in one boot."""
    with layered(directory) as root:
        install(root, ())
        system = root / "etc/systemd/system"
        text = (system / "rankwatch.service").read_text()
        units = {"attempted.service": ATTEMPTED}
        for number, combination in enumerate(combinations):
            units[f"attempts{number}.service"] = unit_of(number, text)
            beside = system / f"attempts{number}.service.d"
            beside.mkdir()
            for name in combination & {*DROP_INS}:
                shutil.copy(UNITS / "rankwatch.service.d" / name, beside / name.removesuffix(".example"))
            last = "SystemCallFilter=\n" if combination == UNFILTERED else f"SystemCallErrorNumber={FILTER}\n"
            (beside / "99-test.conf").write_text(f"[Service]\n{last}")
        for name in ("attempts.py", "attempted.py"):
            shutil.copy(E2E / name, root / "opt")
        shown = boot(root, units, SHOWN, 8)
    said = dict(line.split(" ", 1) for line in shown.splitlines() if line.startswith("/opt/"))
    for number in range(len(combinations)):
        answer = said.get(f"/opt/{number}.answers", shown)
        assert answer.startswith("{"), shown
        yield json.loads(answer)


@pytest.mark.timeout(300)
def test_each_way_into_another_process_is_refused(tmp_path: Path) -> None:
    """No combination of drop-ins opens more than what they are for, and each refusal comes from where it should."""
    wrong = []
    for drop_ins, answered in zip(COMBINATIONS, answers(tmp_path, COMBINATIONS), strict=True):
        wanted = {name: way.answer(drop_ins) for name, way in WAYS.items()}
        differing = {name for name in {*answered, *wanted} if answered.get(name) != wanted.get(name)}
        wrong += [f"{sorted(drop_ins)}: {name}: {answered.get(name)}, not {wanted.get(name)}" for name in differing]
    assert wrong == []


@pytest.mark.timeout(300)
def test_without_the_filter_memory_is_written(tmp_path: Path) -> None:
    """With the same rights and no filter the memory of root's process is written: the attempts are real."""
    [answered] = answers(tmp_path, [UNFILTERED])
    assert answered == {name: way.unfiltered for name, way in WAYS.items()}
