"""Bundles on disk: complete or absent, limited in number and size, and readable only by their owner."""

import os
import stat
import tarfile
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from fake_clock import FakeClock

from agent.cli import evidence, own_agent
from agent.cli.evidence import listed, main, shown
from agent.evidence import folder
from agent.evidence.registry import EvidenceRegistry
from agent.evidence.summary import Event, Part, RankAtTime, Summary, Word
from agent.page.ranks_json import Configuration, JobView, NodeDocument
from exporters.evidence import bundle
from exporters.evidence.bundle import MAX_PART_BYTES, Held, bundle_name, evicted, fitted, write


def summary(job_id: str = "7", at: float = 1.7e9, user: str = "ann") -> Summary:
    """Return a summary of a job with a killed rank."""
    return Summary(
        format=1, job_id=job_id, node="n1", taken_at=at, trigger="dead", because="rank 3 is dead", version="1",
        ranks=[RankAtTime("3", 103, "dead", at - 20, "killed (SIGKILL)")],
        words=[Word("3", "verdict", "killed (SIGKILL)", blames=True)], suspects=["3"],
        timeline=[Event(at - 20, "3", "killed (SIGKILL)", "process")], parts=[], user=user,
    )  # fmt: skip


NAME = "7-20231114T221320Z-n1"


def keep_bundle(directory: Path, number: int, user: str, keep: int, job_id: str = "") -> str:
    """Write the bundle of a job and set the bundle's time to ``number``; return the bundle's name."""
    name = bundle_name(job_id or str(number), 1.7e9 + number, "n1")
    write(directory, name, {}, summary(job_id or str(number), user=user), keep)
    os.utime(directory / f"{name}.tar.gz", (number, number))
    return name


def test_a_bundle_is_its_owners_alone(tmp_path: Path) -> None:
    """Only the owner can read the directory and both files; the bundle has the files and the summary."""
    directory = tmp_path / "evidence"
    assert write(directory, NAME, {"ranks/3/status": b"Name: python"}, summary(), 10) == NAME
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    with tarfile.open(directory / f"{NAME}.tar.gz") as archive:
        assert archive.getnames() == ["ranks/3/status", "summary.json"]
    assert folder.read_summary(directory, NAME) == summary()


def test_one_users_crash_loop_costs_no_other_a_bundle(tmp_path: Path) -> None:
    """At the limit the oldest bundle of the user with the most bundles is evicted."""
    for number, user in enumerate(["ben", "ann", "ann", "ann", "ann"]):
        keep_bundle(tmp_path, number, user, 3)
    assert [name.partition("-")[0] for name in folder.bundles(tmp_path)] == ["0", "3", "4"]
    assert len(list(tmp_path.iterdir())) == 3 * 2
    (tmp_path / f"{folder.bundles(tmp_path)[0]}.json").write_text("{")
    keep_bundle(tmp_path, 5, "cid", 3)
    assert [name.partition("-")[0] for name in folder.bundles(tmp_path)] == ["0", "4", "5"]


def test_without_a_place_nothing_is_removed_or_written(tmp_path: Path) -> None:
    """If each user has one bundle and each job has an open page, a new bundle is refused and all files stay."""
    jobs = [str(number) for number in range(4)]
    for job in jobs:
        write(tmp_path, bundle_name(job, 1.7e9, "n1"), {}, summary(job, user=job), 1, jobs)
    with pytest.raises(bundle.FolderFullError, match="4 users"):
        write(tmp_path, bundle_name("4", 1.7e9, "n1"), {}, summary("4", user="4"), 1, jobs)
    assert sorted(name[0] for name in folder.bundles(tmp_path)) == jobs
    write(tmp_path, bundle_name("4", 1.7e9, "n1"), {}, summary("4", user="4"), 1, jobs[1:])
    assert sorted(name[0] for name in folder.bundles(tmp_path)) == ["1", "2", "3", "4"]


def test_names_are_safe() -> None:
    """A job id and a node name give a short file name inside the directory."""
    name = bundle_name("../../etc/passwd\n" + "x" * 300, 1.7e9, "n/1")
    assert name == f".._.._etc_passwd_{'x' * 47}-20231114T221320Z-n_1"
    assert "/" not in name


def test_long_files_keep_their_ends() -> None:
    """A file above MAX_PART_BYTES keeps its end; short files come first, and files that do not fit are listed."""
    files, left_out = fitted({"long": b"a" + b"b" * MAX_PART_BYTES, "short": b"c"}, MAX_PART_BYTES + 1)
    assert (files, left_out) == ({"long": b"b" * MAX_PART_BYTES, "short": b"c"}, [])
    files, left_out = fitted({"long": b"b" * MAX_PART_BYTES, "short": b"c"}, MAX_PART_BYTES)
    assert (list(files), left_out) == (["short"], ["long"])


def test_a_bundle_is_no_request(tmp_path: Path) -> None:
    """A bundle stays even if its name begins like a request's; a request that cannot be removed has no effect."""
    name = bundle_name("take-home", 1.7e9, "n1")
    write(tmp_path, name, {}, summary("take-home"), 10)
    (tmp_path / "take-me").mkdir()
    folder.request_bundle(tmp_path, "b")
    assert (folder.take_requests(tmp_path), folder.bundles(tmp_path)) == (["b"], [name])
    assert folder.read_summary(tmp_path, name).job_id == "take-home"


def test_requests_wait_for_their_turn(tmp_path: Path) -> None:
    """At most MAX_REQUESTS requests are taken at once; the others are taken next."""
    for number in range(folder.MAX_REQUESTS + 1):
        folder.request_bundle(tmp_path, str(number))
    assert [len(folder.take_requests(tmp_path)) for _ in range(2)] == [folder.MAX_REQUESTS, 1]


@pytest.mark.parametrize("job_id", ["", "x" * (folder.MAX_JOB_ID_BYTES + 1)])
def test_requests_are_bounded(tmp_path: Path, job_id: str) -> None:
    """An invalid job id is refused, and no file is made."""
    with pytest.raises(ValueError, match="150 bytes"):
        folder.request_bundle(tmp_path, job_id)
    assert list(tmp_path.iterdir()) == []


def test_an_odd_summary_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid or too large summary is left out of the list."""
    odd, large, good = (tmp_path / f"{keep_bundle(tmp_path, number, 'ann', 10)}.json" for number in (1, 2, 3))
    odd.write_text("{")
    monkeypatch.setattr(folder, "MAX_SUMMARY_BYTES", good.stat().st_size)
    large.write_bytes(b" " * (folder.MAX_SUMMARY_BYTES + 1))
    assert [entry.job_id for _, entry in folder.summaries(tmp_path)] == ["3"]


def test_which_files_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles and summaries are served by name up to a size limit; links and other names are not."""
    monkeypatch.setattr(folder, "MAX_SERVED_BYTES", 10)
    (tmp_path / f"{NAME}.tar.gz").write_bytes(b"x" * 10)
    (tmp_path / f"{NAME}.json").write_bytes(b"{}")
    (tmp_path / "other").write_bytes(b"x")
    assert folder.read_file(tmp_path, f"{NAME}.tar.gz") == b"x" * 10
    assert folder.read_file(tmp_path, f"{NAME}.json") == b"{}"
    names = (
        "other",
        f"../{tmp_path.name}/{NAME}.json",
        NAME,
        "",
        NAME.replace("7", "8", 1) + ".json",
        f"{NAME}.json\0",
    )
    for name in names:
        assert folder.read_file(tmp_path, name) is None
    (tmp_path / f"{NAME}.tar.gz").write_bytes(b"x" * 11)
    assert folder.read_file(tmp_path, f"{NAME}.tar.gz") is None
    (tmp_path / f"{NAME}-l.json").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        folder.read_file(tmp_path, f"{NAME}-l.json")


async def test_who_ends_gives_no_files() -> None:
    """The registry returns the files that an exporter serves, until the exporter has closed its offers."""

    async def files(name: str) -> bytes | None:
        return b"packed" if name == "bundle" else None

    registry = EvidenceRegistry()
    offers = registry.of("evidence")
    assert await registry.file("bundle") is None
    offers.serve(files)
    assert (await registry.file("bundle"), await registry.file("other")) == (b"packed", None)
    offers.close()
    assert await registry.file("bundle") is None


def test_times_stay_in_order() -> None:
    """Times are cut to tenths of a second, which keeps their order."""
    timeline = [Event(at, "3", f"at {at}", "process") for at in (10.94, 10.97, 11.0)]
    text = shown("bundle", msgspec.structs.replace(summary(), timeline=timeline))
    times = [line.split()[0] for line in text.splitlines() if " at 1" in line]
    assert times == ["00:00:10.9", "00:00:10.9", "00:00:11.0"]


def test_nothing_in_a_summary_steers_a_terminal() -> None:
    """`show` and `list` print no control characters, whatever names and errors contain."""
    evil = "\x1b[2J\x07\u202e"
    known = summary(job_id=evil)
    known = msgspec.structs.replace(
        known, because=evil, ranks=[RankAtTime(evil, 1, "dead", 0.0, f"left {evil}", evil, evil)],
        words=[Word(evil, "stacks", evil, blames=True)], suspects=[evil], timeline=[Event(1.0, evil, evil, "process")],
        parts=[Part("processes", 0, 0.0, f"OSError: {evil}")],
    )  # fmt: skip
    for text in (shown("bundle", known), listed([("bundle", known)])):
        assert [line for line in text.splitlines() if not line.isprintable()] == []


def job_of(directory: Path, name: str) -> str:
    """Return the job id in a bundle's summary."""
    return folder.read_summary(directory, name).job_id


@pytest.mark.parametrize("other", ["a/b", "a_b"])
def test_two_bundles_of_one_second_are_two(tmp_path: Path, other: str) -> None:
    """A second bundle with the same name gets a number; no bundle is overwritten."""
    for job in ("a_b", other, "a:b"):
        name = write(tmp_path, bundle_name(job, 1.7e9, "n1"), {}, summary(job), 10)
        assert job_of(tmp_path, name) == job
    names = folder.bundles(tmp_path)
    assert sorted(job_of(tmp_path, name) for name in names) == sorted(["a_b", other, "a:b"])
    assert all(folder.read_file(tmp_path, f"{name}{folder.SUFFIX}") for name in names)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_disk_that_fills_up_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """If one of the two files cannot be written, both are absent."""
    replace, calls = Path.replace, []

    def full(path: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, bundle_name("7", 1.7e9, "n1"), {}, summary(), 10)
    assert list(tmp_path.iterdir()) == []


def test_who_sees_a_bundle_finds_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle is listed only when its summary can be read, because `rankwatch evidence take` polls the list."""
    replace, seen = Path.replace, []

    def look(path: Path, target: Path) -> Path:
        made = replace(path, target)
        seen.append([job_of(tmp_path, name) for name in folder.bundles(tmp_path)])
        return made

    monkeypatch.setattr(Path, "replace", look)
    write(tmp_path, bundle_name("7", 1.7e9, "n1"), {}, summary(), 10)
    assert seen == [[], ["7"]]


def test_an_agent_killed_while_it_writes_leaves_no_heap(tmp_path: Path) -> None:
    """The next bundle removes drafts of an agent that was killed, and a summary without a bundle; other files stay."""
    (tmp_path / "6-20231114T221320Z-n1.tar.gz.new").write_bytes(b"x")
    (tmp_path / "6-20231114T221320Z-n1.json.new").write_bytes(b"x")
    (tmp_path / "6-20231114T221320Z-n1.json").write_bytes(b"x")
    mine = {"notes.new", "notes.json"}
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    names = [keep_bundle(tmp_path, number, "ann", 10) for number in (1, 2)]
    kept = {f"{name}{end}" for name in names for end in (".json", ".tar.gz")}
    assert {path.name for path in tmp_path.iterdir()} == kept | mine


def held(text: str) -> list[Held]:
    """Return one bundle for each letter, the oldest first; the letter is the user, and a capital means an open page."""
    return [Held(letter.lower(), has_open_page=letter.isupper()) for letter in text]


@pytest.mark.parametrize(("users", "keep", "goes"), [
    ("aab", 3, None), ("aabB", 3, 0), ("baaA", 3, 1), ("abcD", 3, None), ("bAAA", 3, None), ("aAbB", 3, 0),
    ("AabbbC", 5, 2), ("AAb" + "C", 1, None), ("AAbc" + "D", 1, 0), ("bAac" + "D", 1, 2), ("abcd" + "E", 1, 0),
    ("Abcd" + "E", 1, 1), ("ABCD" + "E", 1, 4), ("ABCD" + "A", 1, 0), ("aaaaaaaa" + "B", 1, 0),
])  # fmt: skip
def test_which_goes(users: str, keep: int, goes: int | None) -> None:
    """A user with several bundles loses one first, if possible without an open page; a user's only bundle goes last."""
    assert evicted(held(users), keep) == goes


def test_the_limit_of_a_node() -> None:
    """A node keeps at most four times ``keep_bundles`` bundles, and never more than MAX_LISTED."""
    only = [Held(str(user), has_open_page=True) for user in range(folder.MAX_LISTED + 1)]
    assert (evicted(only[:40], 10), evicted(only[:41], 10), evicted(only, 1000)) == (None, 40, folder.MAX_LISTED)


def test_what_the_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing directory, permission or rank gives a message with a remedy; a bundle can be given by path."""
    write(tmp_path, NAME, {}, summary(), 10)
    path = ["--path", str(tmp_path)]
    node = NodeDocument(
        rankwatch="0.2.0", hostname="n1", now_seconds=0.0, up_seconds=9.0, ready=True,
        jobs=(JobView(job_id="7", sentence="8 ranks run", states={}),),
    )  # fmt: skip
    os.mkfifo(tmp_path / "fifo")
    named = msgspec.structs.replace(node, configuration=Configuration(str(tmp_path / "fifo")))
    monkeypatch.setattr(own_agent, "document", lambda agent, seconds: named)
    monkeypatch.setattr(own_agent, "CONFIG_FILE", tmp_path / "no.yml")
    monkeypatch.setattr(folder, "DEFAULT_PATH", str(tmp_path))
    assert main(["list"]) == 0  # if the agent's file is a FIFO, the command does not hang
    assert NAME in capsys.readouterr().out
    monkeypatch.setattr(own_agent, "document", lambda agent, seconds: node)
    assert main(["--path", str(tmp_path / "none"), "show", str(tmp_path / f"{NAME}.json")]) == 0
    assert capsys.readouterr().out.startswith(f"{NAME}: job 7")
    keep_bundle(tmp_path, 2, "ann", 10, "team/train-1")
    assert main([*path, "show", "team/train-1"]) == 0
    assert ": job team/train-1 on n1" in capsys.readouterr().out
    assert main(["--path", str(tmp_path / "none"), "list"]) == 1
    assert "the agent takes no evidence, or writes it elsewhere (--path)" in capsys.readouterr().err
    for name, said in (("nope", "no bundle or job nope in"), ("/none/x.json", "no such bundle: /none/x.json")):
        assert main([*path, "show", name]) == 1
        assert said in (error := capsys.readouterr().err)
        assert error.endswith("; rankwatch evidence list\n")
    assert main([*path, "take", "--job", "8"]) == 1
    assert "job 8 has no rank on this node; jobs here: 7" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, rights: not rights & os.W_OK)
    assert main([*path, "list"]) == 0
    assert main([*path, "take", "--job", "7"]) == 1
    assert f"you have no right to write {tmp_path}; run it as root" in capsys.readouterr().err
    monkeypatch.setattr(folder, "read_summary", Mock(side_effect=PermissionError(13, "no", "/x.json")))
    assert main([*path, "show", NAME]) == 1
    assert "you have no right to read /x.json; run it as root" in capsys.readouterr().err


def test_the_command_waits_as_long_as_a_bundle_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command waits twice the configured time: the agent can be busy with another bundle."""
    clock, config = FakeClock(), tmp_path / "rankwatch.yml"
    config.write_text(f"exporters: {{evidence: {{path: {tmp_path}, seconds_per_bundle: 60}}}}")
    monkeypatch.setattr(evidence, "time", Mock(monotonic=clock.monotonic, sleep=clock.advance))
    monkeypatch.setattr(own_agent, "document", Mock(side_effect=OSError))
    assert main(["take", "--job", "7", "--config.file", str(config)]) == 1
    assert "no bundle came within 120 s" in capsys.readouterr().err
