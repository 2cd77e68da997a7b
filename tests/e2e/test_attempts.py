"""Attempts of the agent's process on another process, in the booted unit, with each combination of drop-ins.

docs/security.md has the tables of refused and permitted attempts."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from attempts_expected import FILTER, OTHER_USERS, WAYS
from booted import UNITS, boot, install, layered, why_not_booted
from full import full

E2E = Path(__file__).parent
HARDWARE, RECLAIM = "55-hardware.conf", "60-reclaim.conf.example"
DROP_INS = (OTHER_USERS, HARDWARE, RECLAIM)
COMBINATIONS = [frozenset(some) for size in range(len(DROP_INS) + 1) for some in itertools.combinations(DROP_INS, size)]
UNFILTERED = frozenset({OTHER_USERS, "unfiltered"})
"""The control, without the filter: if an attempt succeeds only in the control, the filter refused it."""
ATTEMPTED = """\
[Service]
Type=simple
ExecStart=/opt/rankwatch/bin/python -B /opt/attempted.py /opt/attacked.json
ExecStartPost=/bin/sh -c 'until test -e /opt/attacked.json; do sleep 0.1; done'
"""
SHOW_ANSWERS = "for file in /opt/*.answers; do echo $file $(cat $file); done; systemctl --failed --no-pager"

pytestmark = [full, pytest.mark.skipif(why_not_booted() is not None, reason=why_not_booted() or "")]


def unit_of(number: int, text: str) -> str:
    """Return the unit ``text`` with the attempts instead of the agent."""
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    attempts = (
        "ExecStart=/opt/rankwatch/bin/python -B /opt/attempts.py /opt/attacked.json\n"
        f"StandardOutput=file:/opt/{number}.answers\nStandardError=file:/opt/{number}.answers"
    )
    text = text.replace("Type=notify", "Type=oneshot").replace("Restart=on-failure", "Restart=no")
    return "[Unit]\nAfter=attempted.service\n" + text.replace(start, attempts)


def answers(directory: Path, combinations: Collection[frozenset[str]]) -> Iterator[dict[str, str]]:
    """Yield the replies to the attempts under each combination, from one boot."""
    with layered(directory) as root:
        install(root, ())
        system = root / "etc/systemd/system"
        text = (system / "rankwatch.service").read_text()
        units = {"attempted.service": ATTEMPTED}
        for number, combination in enumerate(combinations):
            units[f"attempts{number}.service"] = unit_of(number, text)
            drop_ins = system / f"attempts{number}.service.d"
            drop_ins.mkdir()
            for name in combination & {*DROP_INS}:
                shutil.copy(UNITS / "rankwatch.service.d" / name, drop_ins / name.removesuffix(".example"))
            setting = "SystemCallFilter=\n" if combination == UNFILTERED else f"SystemCallErrorNumber={FILTER}\n"
            (drop_ins / "99-test.conf").write_text(f"[Service]\n{setting}")
        for name in ("attempts.py", "attempted.py"):
            shutil.copy(E2E / name, root / "opt")
        output = boot(root, units, SHOW_ANSWERS, 8)
    by_file = dict(line.split(" ", 1) for line in output.splitlines() if line.startswith("/opt/"))
    for number in range(len(combinations)):
        answer = by_file.get(f"/opt/{number}.answers", output)
        assert answer.startswith("{"), output
        yield json.loads(answer)


@pytest.mark.timeout(300)
def test_each_way_into_another_process_is_refused(tmp_path: Path) -> None:
    """Each combination of drop-ins permits only the expected attempts; each refusal has the errno of its cause."""
    wrong = []
    for drop_ins, answered in zip(COMBINATIONS, answers(tmp_path, COMBINATIONS), strict=True):
        expected = {name: way.answer(drop_ins) for name, way in WAYS.items()}
        differing = {name for name in {*answered, *expected} if answered.get(name) != expected.get(name)}
        wrong += [f"{sorted(drop_ins)}: {name}: {answered.get(name)}, not {expected.get(name)}" for name in differing]
    assert wrong == []


@pytest.mark.timeout(300)
def test_without_the_filter_memory_is_written(tmp_path: Path) -> None:
    """With the same rights and no filter, the attempts write into the memory of root's process."""
    [answered] = answers(tmp_path, [UNFILTERED])
    assert answered == {name: way.unfiltered for name, way in WAYS.items()}
