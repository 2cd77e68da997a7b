"""The switch of a port: the site's file and LLDP, read when they change."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent

from exporters.rdma import RdmaConfig, RdmaExporter, exporter as exporter_module, switches, switches as module
from exporters.rdma.exporter import NEIGHBOURS_SECONDS
from exporters.rdma.switches import MAX_NAME, Wiring, read_neighbours, read_wiring

DATA = Path(__file__).parents[1] / "data" / "rdma"
HEAD = "device,port,switch,switch_port\n"


@pytest.mark.parametrize(("text", "ports"), [
    ("\ufeff" + HEAD + 'mlx5_0,1,leaf-1,swp7\nmlx5_1, 1, "leaf 2, left",\n',
     {"mlx5_0": ("leaf-1", "swp7"), "mlx5_1": ("leaf 2, left", "")}),
    ("switch,node,device,port,switch_port\nleaf-1,a.example,mlx5_0,1,1\nleaf-2,b,mlx5_0,1,2\nleaf-3,,mlx5_1,1,3\n",
     {"mlx5_0": ("leaf-1", "1"), "mlx5_1": ("leaf-3", "3")}),
])  # fmt: skip
def test_the_file_of_one_node(text: str, ports: dict[str, tuple[str, str]]) -> None:
    """Each line has a port and its switch, with the columns in any order; lines of other nodes are skipped."""
    for name in ("a", "a.other"):
        assert read_wiring(text.encode(), name) == Wiring({(device, "1"): port for device, port in ports.items()})


def test_lines_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Malformed lines, and lines above the limit, are reported by number and skipped."""
    lines = ["mlx5_0,1,leaf-1,1", "mlx5_1,1", f"mlx5_2,1,{'x' * (MAX_NAME + 1)},1", "mlx5_3,1,a\x07,1", "mlx5_4,1,l,1"]
    assert read_wiring((HEAD + "\n".join(lines)).encode(), "a").bad_lines == (3, 4, 5)
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    ports = read_wiring((HEAD + "\n".join([*lines, "mlx5_5,1,l,2"])).encode(), "a")
    assert (len(ports.switches), ports.bad_lines) == (2, (3, 4, 5, 7))


def test_a_file_of_another_form_is_refused() -> None:
    """A file without its columns, or one that is no CSV, is refused as a whole."""
    for text in ("", "mlx5_0,1,leaf-1,1\n", "device,port,switch\n"):
        with pytest.raises(ValueError, match="columns are missing"):
            read_wiring(text.encode(), "a")
    with pytest.raises(ValueError, match="field"):
        read_wiring((HEAD + "x" * 200_000).encode(), "a")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Provide the fake node with its file."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    (tmp_path / "wiring.csv").write_text(HEAD + "mlx5_0,1,leaf-1,swp7\nmlx5_9,1,leaf-1,swp8\n,,,\n")
    return tmp_path


async def test_what_is_shown(root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing ports show their switch; a missing or invalid file leaves the last valid content, and is logged once."""
    exporter = RdmaExporter(RdmaConfig(switch_ports=str(root / "wiring.csv")))
    await exporter.start(lent("rdma", FakeClock(), root))
    expected = {("mlx5_0", "1"): ("leaf-1", "swp7")}
    for _ in range(2):
        await exporter.update()
        assert connected(exporter) == expected
    wiring = await asyncio.to_thread((root / "wiring.csv").read_text)
    monkeypatch.setattr(exporter_module, "MAX_BYTES", len(wiring))
    for content in ("nonsense\n", f"{wiring}\n", None, f"{HEAD}mlx5_0,1,leaf-2,1\n"):
        caplog.clear()
        await asyncio.to_thread(write, root / "wiring.csv", content)
        for _ in range(2):
            await exporter.update()
        is_good = content is not None and content.startswith(HEAD) and len(content) <= len(wiring)
        assert sum("cannot read" in record.message for record in caplog.records) == (not is_good)
        assert (connected(exporter) == expected) is not is_good


def write(path: Path, content: str | None) -> None:
    """Write this content; None removes the file."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)


def neighbour(name: str, switch: object = "leaf-1", swp: object = "swp7", via: str = "LLDP", **more: object) -> object:
    """Return an interface with its LLDP neighbour."""
    port = {"id": [{"type": "ifname", "value": swp}], "descr": [{"value": "to gpu-01"}], "ttl": [{"value": "120"}]}
    chassis = {"id": [{"type": "mac", "value": "00:11:22:33:44:55"}], "name": [{"value": switch}]}
    facts = {"via": via, "rid": "1", "age": "0 day, 02:10:11"}
    return {"name": name, **facts, "chassis": [chassis], "port": [port], **more}


def lldp_output(*interfaces: object) -> bytes:
    """Return the output of lldpcli."""
    return json.dumps({"lldp": [{"interface": list(interfaces)}]}).encode()


def test_a_switch_without_names() -> None:
    """A switch without a name has its id; a port with an address as id has its description."""
    nameless = [{"id": [{"type": "mac", "value": "00:11:22:33:44:55"}]}]
    by_address = {"id": [{"type": "mac", "value": "aa:bb"}], "descr": [{"value": "Gi1/0/4"}]}
    cases: list[tuple[dict[str, object], tuple[str, str] | None]] = [
        ({"chassis": nameless, "port": [by_address]}, ("00:11:22:33:44:55", "Gi1/0/4")),
        ({"port": [{"id": by_address["id"]}]}, ("leaf-1", "aa:bb")),
        ({"port": []}, ("leaf-1", "")),
        ({"chassis": []}, None),
    ]
    for changes, port in cases:
        assert read_neighbours(lldp_output(neighbour("a", **changes))).get("a") == port


def test_odd_neighbours() -> None:
    """Of several neighbours the first by LLDP is used; texts are printable and limited in length."""
    long = neighbour("b", "s" * (MAX_NAME + 1), "x\x07")
    ports = read_neighbours(lldp_output(neighbour("a", via="CDPv2"), neighbour("a"), neighbour("a", "leaf-9"), long))
    assert ports == {"a": ("leaf-1", "swp7"), "b": ("s" * MAX_NAME, "to gpu-01")}


def test_interfaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interfaces are kept up to the limit."""
    monkeypatch.setattr(switches, "MAX_INTERFACES", 2)
    assert list(read_neighbours(lldp_output(*map(neighbour, "abc")))) == ["a", "b"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"lldp": {"interface": {}}}', b"\xff", b'{"x":' + b"[" * 100_000])
def test_what_is_no_such_output(raw: bytes) -> None:
    """Any other text is refused, even lldpcli's format `json`."""
    with pytest.raises(ValueError):
        read_neighbours(raw)


def test_the_sites_word_comes_first(tmp_path: Path) -> None:
    """The site's file names a port's switch; for other ports, LLDP on the port's network device names it."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    path, wiring = tmp_path / "lldp.json", tmp_path / "wiring.csv"
    path.write_bytes(lldp_output(neighbour("ens1f0np0", "leaf-7"), neighbour("", "nobody")))
    exporter = RdmaExporter(RdmaConfig(lldp_neighbors=str(path), switch_ports=str(wiring)))
    with asyncio.Runner() as runner:
        runner.run(exporter.start(lent("rdma", FakeClock(), tmp_path)))
        runner.run(exporter.update())
        assert connected(exporter) == {("bnxt_re0", "1"): ("leaf-7", "swp7")}
        path.write_bytes(b"half")
        wiring.write_text("device,port,switch,switch_port\nmlx5_0,1,leaf-1,swp1\nbnxt_re0,1,leaf-3,swp3\n")
        runner.run(exporter.update())
        assert connected(exporter) == {("mlx5_0", "1"): ("leaf-1", "swp1"), ("bnxt_re0", "1"): ("leaf-3", "swp3")}
        wiring.write_text("device,port,switch,switch_port\n")
        runner.run(exporter.update())
        assert connected(exporter) == {("bnxt_re0", "1"): ("leaf-7", "swp7")}


def test_old_neighbours_are_not_exported(tmp_path: Path) -> None:
    """A file older than four hours, or a missing one, gives no switch."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    path, clock = tmp_path / "lldp.json", FakeClock()
    exporter = RdmaExporter(RdmaConfig(lldp_neighbors=str(path)))

    def is_shown(age_seconds: float | None) -> bool:
        path.unlink(missing_ok=True)
        if age_seconds is not None:
            path.write_bytes(lldp_output(neighbour("ens1f0np0", "leaf-7")))
            os.utime(path, (0, clock.time() - age_seconds))
        runner.run(exporter.update())
        return bool(connected(exporter))

    with asyncio.Runner() as runner:
        runner.run(exporter.start(lent("rdma", clock, tmp_path)))
        assert [is_shown(age) for age in (0.0, NEIGHBOURS_SECONDS + 1.0, 60.0, None)] == [True, False, True, False]


def connected(exporter: RdmaExporter) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the switch and its port, by device and port."""
    ports = samples(exporter.families(exporter.snapshot()))
    labels = [entry.labels for entry in ports if entry.name == "rankwatch_rdma_switch_info"]
    return {(label["device"], label["port"]): (label["switch"], label["switch_port"]) for label in labels}
