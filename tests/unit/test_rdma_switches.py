"""What a port is connected to: the site's file, read when it changes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from hypothesis import given, strategies as st
from lent import lent

from exporters.rdma import RdmaConfig, RdmaExporter, switches as module
from exporters.rdma.switches import MAX_NAME, SiteFile, Wiring, read_wiring

DATA = Path(__file__).parents[1] / "data" / "rdma"
HEAD = "device,port,switch,switch_port\n"


def test_the_file_of_one_node() -> None:
    """Each line is a port and what it is connected to; the switch's port may be missing."""
    text = HEAD + 'mlx5_0,1,leaf-1,swp7\nmlx5_1, 1, "leaf 2, left",\n'
    assert read_wiring(text, "a") == Wiring(
        {("mlx5_0", "1"): ("leaf-1", "swp7"), ("mlx5_1", "1"): ("leaf 2, left", "")}
    )


def test_the_file_of_many_nodes() -> None:
    """Lines of other nodes are passed over, whether names are short or long; columns may stand in any order."""
    text = "switch,node,device,port,switch_port\nleaf-1,a.example,mlx5_0,1,1\nleaf-2,b,mlx5_0,1,2\nleaf-3,,mlx5_1,1,3\n"
    for name in ("a", "a.other"):
        assert read_wiring(text, name).switches == {("mlx5_0", "1"): ("leaf-1", "1"), ("mlx5_1", "1"): ("leaf-3", "3")}


def test_lines_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by number and cost themselves alone; so are those beyond the bound."""
    lines = ["mlx5_0,1,leaf-1,1", "mlx5_1,1", f"mlx5_2,1,{'x' * (MAX_NAME + 1)},1", "mlx5_3,1,a\x07,1", "mlx5_4,1,l,1"]
    assert read_wiring(HEAD + "\n".join(lines), "a").bad_lines == (3, 4, 5)
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    found = read_wiring(HEAD + "\n".join([*lines, "mlx5_5,1,l,2"]), "a")
    assert (len(found.switches), found.bad_lines) == (2, (3, 4, 5, 7))


def test_a_file_of_another_form_is_refused() -> None:
    """Without its columns, or when it is no CSV, it is refused as a whole."""
    for text in ("", "mlx5_0,1,leaf-1,1\n", "device,port,switch\n"):
        with pytest.raises(ValueError, match="columns are missing"):
            read_wiring(text, "a")
    with pytest.raises(ValueError, match="field"):
        read_wiring(HEAD + "x" * 200_000, "a")


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    """Nothing in a line is an error of the program."""
    read_wiring(HEAD + text, "a")


def wiring_file(path: Path | str, max_bytes: int = module.MAX_BYTES) -> SiteFile[Wiring]:
    """The file as the exporter reads it on node a."""
    return SiteFile(str(path), lambda raw: read_wiring(raw.decode(), "a"), max_bytes)


def test_it_is_read_when_it_changes(tmp_path: Path) -> None:
    """A change is told once, whether it can be read or not; without a path there is nothing."""
    path = tmp_path / "wiring.csv"
    file = wiring_file(path)
    path.write_text(HEAD + "mlx5_0,1,leaf-1,1\n")
    assert file.changed() == Wiring({("mlx5_0", "1"): ("leaf-1", "1")})
    assert file.changed() is None
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.changed()
    assert file.changed() is None
    path.write_bytes(HEAD.encode() + b"mlx5_0,1,\xff,1\n")
    with pytest.raises(ValueError):
        file.changed()
    assert file.changed() is None
    path.write_text(HEAD + "mlx5_0,1,leaf-2,1\n")
    file = wiring_file(path, path.stat().st_size)
    assert file.changed() is not None
    path.write_text(HEAD + "mlx5_0,1,leaf-22,1\n")
    with pytest.raises(ValueError, match="larger"):
        file.changed()
    assert wiring_file("").changed() is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The made-up node with its file."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    (tmp_path / "wiring.csv").write_text(HEAD + "mlx5_0,1,leaf-1,swp7\nmlx5_9,1,leaf-1,swp8\n,,,\n")
    return tmp_path


async def test_what_is_shown(root: Path) -> None:
    """Ports that there are have the switch's; a file that is broken later leaves what was read."""
    exporter = RdmaExporter(RdmaConfig(switch_ports=str(root / "wiring.csv")))
    await exporter.start(lent("rdma", FakeClock(), root))
    expected = [{"device": "mlx5_0", "port": "1", "switch": "leaf-1", "switch_port": "swp7"}]
    for _ in range(2):
        await exporter.update()
        assert shown(exporter) == expected
    await asyncio.to_thread((root / "wiring.csv").write_text, "nonsense\n")
    for _ in range(2):
        await exporter.update()
        assert shown(exporter) == expected


def shown(exporter: RdmaExporter) -> list[dict[str, str]]:
    """The labels of the ports that are connected."""
    found = samples(exporter.families(exporter.snapshot()))
    return [each.labels for each in found if each.name == "rankwatch_rdma_switch_info"]
