"""Reads that hang cost their users alone."""

from __future__ import annotations

import threading

import pytest

from agent.system import per_user
from agent.system.per_user import PerUser


def test_a_file_system_that_hangs_costs_its_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a read hangs its user gets no answer, others do; above so many hanging reads nobody does."""
    hangs = threading.Event()

    def answer(uid: int) -> str:
        if uid < 3:
            hangs.wait(30.0)
        return f"of {uid}"

    monkeypatch.setattr(per_user, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(per_user, "MAX_WAITING", 3)
    users: PerUser[int, str] = PerUser(lambda uid: uid, answer)
    assert users.ask([1, 5]) == [None, "of 5"]
    assert users.ask([1, 5, 5]) == [None, "of 5", "of 5"]
    assert users.ask([2, 0, 5])[2] is None
    hangs.set()
