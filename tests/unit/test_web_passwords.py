"""Passwords: accepted and wrong passwords, the number of checks, and requests that are refused without a check."""

import asyncio
import base64
import threading

import bcrypt
import pytest
from fake_clock import FakeClock

from agent.core.threads import OwnThread
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.secured import CHECKS_AT_ONCE, MAX_CLIENTS, MAX_VALID, MAX_WAITING, Passwords, Secured
from agent.web.web_file import RateLimit

HERE = "10.0.0.1"


def header(user: str, password: str, scheme: str = "Basic") -> str:
    """Return a client's Authorization header."""
    return f"{scheme} {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class Door:
    """Passwords that are their own hashes, and the checks made."""

    def __init__(self, users: dict[str, str]) -> None:
        self.clock = FakeClock()
        self.checked: list[tuple[bytes, bytes]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.passwords = Passwords(users, OwnThread("test"), self.clock.monotonic, self.check)

    def check(self, password: bytes, hashed: bytes) -> bool:
        self.may_go_on.wait(10)
        self.checked.append((password, hashed))
        return password == hashed

    async def ask(self, user: str = "prom", said: str = "secret", client: str = HERE) -> str:
        return await self.passwords.check(header(user, said), client)


@pytest.fixture
def door() -> Door:
    """Provide a door for two users."""
    return Door({"prom": "secret", "eve": "eve's"})


async def test_with_bcrypt_itself() -> None:
    """A real hash accepts its password and no other, of any length."""
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    passwords = Passwords({"prom": hashed}, OwnThread("test"), FakeClock().monotonic, bcrypt.checkpw)
    assert await passwords.check(header("prom", "secret"), HERE) == "right"
    for wrong in ("secret2", "", "x" * 500):
        assert await passwords.check(header("prom", wrong), HERE) == "wrong"


@pytest.mark.parametrize(
    "sent", ["", "Basic", "Basic !", "Basic c2VjcmV0", "Bearer x", header("prom", "secret", "Digest"), "Basic \xff"]
)
async def test_what_is_no_password(door: Door, sent: str) -> None:
    """A malformed header has the result `wrong` without a check."""
    assert (await door.passwords.check(sent, HERE), door.checked) == ("wrong", [])


async def test_what_was_right_once_is_remembered(door: Door) -> None:
    """A correct user and password are checked once, and a wrong pair each time; another user's password is wrong."""
    assert ([await door.ask() for _ in range(5)], len(door.checked)) == (["right"] * 5, 1)
    assert await door.ask(said="eve's") == "wrong"
    assert (await door.ask("eve"), len(door.checked)) == ("wrong", 3)


async def test_an_unknown_user_takes_as_long_as_a_known_one(door: Door) -> None:
    """A password of an unknown user is compared with a hash, to take as long, but the result is `wrong`."""
    assert (await door.ask("nobody"), door.checked) == ("wrong", [(b"secret", b"secret")])


async def test_wrong_passwords_are_bounded_by_address(door: Door) -> None:
    """Each address has ten checks at once, then two a second; known users and other addresses are still accepted."""
    assert await door.ask() == "right"
    verdicts = [await door.ask(said="wrong") for _ in range(CHECKS_AT_ONCE + 5)]
    assert verdicts == ["wrong"] * (CHECKS_AT_ONCE - 1) + ["too_many"] * 6
    assert await door.ask() == "right"
    assert await door.ask("eve", "eve's", "10.0.0.2") == "right"
    door.clock.advance(1.0)
    assert [await door.ask(said="wrong") for _ in range(3)] == ["wrong", "wrong", "too_many"]


async def test_checks_that_wait_are_bounded(door: Door) -> None:
    """While the maximum number of addresses wait for a check, another address is refused without a check."""
    door.may_go_on.clear()
    waiting = [asyncio.ensure_future(door.ask(client=f"10.0.1.{number}")) for number in range(MAX_WAITING)]
    await asyncio.sleep(0)
    assert await door.ask(client="10.0.2.1") == "too_many"
    door.may_go_on.set()
    assert await asyncio.gather(*waiting) == ["right"] * MAX_WAITING
    assert await door.ask("eve", "eve's", "10.0.2.1") == "right"


async def test_a_right_password_waits_for_one_check_of_another_address(door: Door) -> None:
    """While one address guesses as fast as allowed, the first correct password of another address is checked next."""
    door.may_go_on.clear()
    guesses = [asyncio.ensure_future(door.ask(said=f"guess {number}")) for number in range(CHECKS_AT_ONCE)]
    await asyncio.sleep(0)
    right = asyncio.ensure_future(door.ask(client="10.0.0.2"))
    await asyncio.sleep(0)
    door.may_go_on.set()
    assert await right == "right"
    assert await asyncio.gather(*guesses) == ["wrong"] * CHECKS_AT_ONCE
    assert [password for password, _ in door.checked][:2] == [b"guess 0", b"secret"]


async def test_tables_are_bounded(door: Door) -> None:
    """The tables of clients and of correct passwords hold at most their limit; a new entry removes the oldest."""
    for number in range(MAX_CLIENTS + 1):
        await door.ask(said="wrong", client=str(number))
    assert len(door.passwords._buckets) == MAX_CLIENTS
    many = Door({f"u{number}": "secret" for number in range(MAX_VALID + 1)})
    for number in range(MAX_VALID + 1):
        await many.ask(f"u{number}", client=str(number))
    assert len(many.passwords._valid) == MAX_VALID


async def answered(secured: Secured, path: str, authorization: str = "") -> int:
    """Return the status of the refusal, or 200."""
    refusal = await secured.refuse(HttpRequest(path, headers={"authorization": authorization}, client=HERE))
    return 200 if refusal is None else refusal.status


async def test_what_is_open(door: Door) -> None:
    """Health and readiness are open, and all other pages need a password."""
    secured = Secured(door.passwords)
    statuses = {"/-/healthy": 200, "/-/ready": 200, "/metrics": 401, "/": 401}
    assert {path: await answered(secured, path) for path in statuses} == statuses
    assert await answered(secured, "/metrics", header("prom", "secret")) == 200
    refusal = await secured.refuse(HttpRequest("/metrics"))
    assert dict(refusal.headers)["WWW-Authenticate"].startswith("Basic realm=")


async def test_headers_go_with_every_answer(door: Door) -> None:
    """A header in the web file replaces the page's own header, also on refusals; without headers nothing changes."""
    secured = Secured(door.passwords, headers={"Content-Security-Policy": "x"})
    assert dict((await secured.refuse(HttpRequest("/metrics"))).headers)["Content-Security-Policy"] == "x"
    page = HttpResponse(200, TEXT, b"", (("Content-Security-Policy", "own"), ("Vary", "Accept")))
    assert secured.finish(page).headers == (("Vary", "Accept"), ("Content-Security-Policy", "x"))
    assert Secured().finish(page) is page


async def test_the_rate_of_requests() -> None:
    """A request above the rate gets a 429."""
    clock = FakeClock()
    secured = Secured(rate=RateLimit("1s", 2), monotonic=clock.monotonic)
    assert [await answered(secured, "/metrics") for _ in range(3)] == [200, 200, 429]
    clock.advance(1.0)
    assert [await answered(secured, "/metrics") for _ in range(2)] == [200, 429]


async def test_too_many_is_a_429(door: Door) -> None:
    """An address with too many wrong passwords gets a 429."""
    secured = Secured(door.passwords)
    statuses = [await answered(secured, "/metrics", header("prom", "wrong")) for _ in range(CHECKS_AT_ONCE + 1)]
    assert statuses == [401] * CHECKS_AT_ONCE + [429]
