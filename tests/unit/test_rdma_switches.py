"""What a port is connected to: the site's file, read when it changes."""

import asyncio
import shutil
from pathlib import Path

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from hypothesis import given, strategies as st
from lent import lent

from exporters.rdma import RdmaConfig, RdmaExporter, exporter as exporter_module, switches as module
from exporters.rdma.switches import MAX_NAME, Wiring, read_wiring

DATA = Path(__file__).parents[1] / "data" / "rdma"
HEAD = "device,port,switch,switch_port\n"


def test_the_file_of_one_node() -> None:
    """Each line is a port and what it is connected to; the switch's port may be missing."""
    text = HEAD + 'mlx5_0,1,leaf-1,swp7\nmlx5_1, 1, "leaf 2, left",\n'
    assert read_wiring(text.encode(), "a") == Wiring(
        {("mlx5_0", "1"): ("leaf-1", "swp7"), ("mlx5_1", "1"): ("leaf 2, left", "")}
    )


def test_the_file_of_many_nodes() -> None:
    """Lines of other nodes are passed over, whether names are short or long; columns may stand in any order."""
    text = "switch,node,device,port,switch_port\nleaf-1,a.example,mlx5_0,1,1\nleaf-2,b,mlx5_0,1,2\nleaf-3,,mlx5_1,1,3\n"
    for name in ("a", "a.other"):
        assert read_wiring(text.encode(), name).switches == {
            ("mlx5_0", "1"): ("leaf-1", "1"),
            ("mlx5_1", "1"): ("leaf-3", "3"),
        }


def test_lines_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by number and cost themselves alone; so are those beyond the bound."""
    lines = ["mlx5_0,1,leaf-1,1", "mlx5_1,1", f"mlx5_2,1,{'x' * (MAX_NAME + 1)},1", "mlx5_3,1,a\x07,1", "mlx5_4,1,l,1"]
    assert read_wiring((HEAD + "\n".join(lines)).encode(), "a").bad_lines == (3, 4, 5)
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    found = read_wiring((HEAD + "\n".join([*lines, "mlx5_5,1,l,2"])).encode(), "a")
    assert (len(found.switches), found.bad_lines) == (2, (3, 4, 5, 7))


def test_a_file_of_another_form_is_refused() -> None:
    """Without its columns, or when it is no CSV, it is refused as a whole."""
    for text in ("", "mlx5_0,1,leaf-1,1\n", "device,port,switch\n"):
        with pytest.raises(ValueError, match="columns are missing"):
            read_wiring(text.encode(), "a")
    with pytest.raises(ValueError, match="field"):
        read_wiring((HEAD + "x" * 200_000).encode(), "a")


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    """Nothing in a line is an error of the program."""
    read_wiring((HEAD + text).encode(), "a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The made-up node with its file."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    (tmp_path / "wiring.csv").write_text(HEAD + "mlx5_0,1,leaf-1,swp7\nmlx5_9,1,leaf-1,swp8\n,,,\n")
    return tmp_path


async def test_what_is_shown(root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that there are have the switch's; a file that is broken later leaves what was read, logged once."""
    exporter = RdmaExporter(RdmaConfig(switch_ports=str(root / "wiring.csv")))
    await exporter.start(lent("rdma", FakeClock(), root))
    expected = [{"device": "mlx5_0", "port": "1", "switch": "leaf-1", "switch_port": "swp7"}]
    for _ in range(2):
        await exporter.update()
        assert shown(exporter) == expected
    wiring = await asyncio.to_thread((root / "wiring.csv").read_text)
    monkeypatch.setattr(exporter_module, "MAX_BYTES", len(wiring))
    for content in ("nonsense\n", f"{wiring}\n", None, f"{HEAD}mlx5_0,1,leaf-2,1\n"):
        caplog.clear()
        await asyncio.to_thread(write, root / "wiring.csv", content)
        for _ in range(2):
            await exporter.update()
        is_good = content is not None and content.startswith(HEAD) and len(content) <= len(wiring)
        assert sum("cannot read" in record.message for record in caplog.records) == (not is_good)
        assert (shown(exporter) == expected) is not is_good


def write(path: Path, content: str | None) -> None:
    """Put this content there; None: remove the file."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)


def shown(exporter: RdmaExporter) -> list[dict[str, str]]:
    """The labels of the ports that are connected."""
    found = samples(exporter.families(exporter.snapshot()))
    return [each.labels for each in found if each.name == "rankwatch_rdma_switch_info"]
