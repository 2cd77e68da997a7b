"""The packages and the direction of imports between them."""

from __future__ import annotations

import pytest
from test_imports import ROOT, Source, sources

FLOORS = {
    "agent": (
        ("core", "tail"),
        ("system", "helper", "hardware", "evidence"),
        ("ranks",),
        ("export",),
        ("sdk",),
        ("web", "page"),
        ("app",),
        ("cli",),
        ("__main__",),
    ),
    "agent/ranks": (("rank",), ("naming",), ("liveness",), ("*",)),
    "agent/simulate": (("*",),),
    "exporters/inspector": (("format",), ("totals",), ("reading",), ("*",)),
    "exporters/process": (("usage",), ("*",)),
    "exporters/ras": (("protocol", "report"), ("local",), ("query",), ("show",), ("*",)),
}
"""The packages of each building (a directory) by floor, lowest first; `*`: modules in no package."""
MAX_LINES = 300


def place_of(building: str, module: str) -> str:
    """Return the package of a module (dotted name) in the directory ``building``, or `*`."""
    rest = module.removeprefix(building.replace("/", ".") + ".").split(".")
    known = {room for floor in FLOORS[building] for room in floor}
    return rest[0] if rest[0] in known else "*"


def inside(building: str) -> list[tuple[Source, str, set[str]]]:
    """Return each module of a building: its file, its dotted name, and its imports within the building."""
    own = building.replace("/", ".") + "."
    return [
        (
            source,
            source.name.removesuffix(".py").replace("/", "."),
            {module for module in source.imports if module.startswith(own)},
        )
        for source in sources(building)
        if building != "agent" or not source.name.startswith("agent/simulate/")
    ]


@pytest.mark.parametrize("building", FLOORS)
def test_arrows_go_down_only(building: str) -> None:
    """A module imports its own package and packages on lower floors."""
    floor = {room: height for height, rooms in enumerate(FLOORS[building]) for room in rooms}
    for source, name, imported in inside(building):
        if source.path.name == "__init__.py":  # a package's interface: it names what others may import
            continue
        room = place_of(building, name)
        assert room in floor, f"{source.name}: its room is on no floor"
        for other in sorted(imported):
            target = place_of(building, other)
            if other in ("agent.__version__",) or (building == "agent" and other.startswith("agent.simulate.")):
                continue
            below = target in floor and floor[target] < floor[room]
            assert target == room or below, f"{source.name}: {room} imports {other}"


@pytest.mark.parametrize("building", FLOORS)
def test_every_room_is_on_a_floor(building: str) -> None:
    """Every package is in the plan, and every package of the plan exists."""
    folders = {path.name for path in (ROOT / building).iterdir() if path.is_dir() and any(path.glob("*.py"))}
    rooms = {room for floor in FLOORS[building] for room in floor}
    assert folders - {"simulate"} <= rooms
    for room in rooms - {"*"}:
        assert room in folders or (ROOT / building / f"{room}.py").exists(), room


@pytest.mark.parametrize("building", ["agent", "exporters/inspector", "exporters/ras"])
def test_no_modules_import_each_other_in_a_circle(building: str) -> None:
    """No modules import each other in a circle."""
    modules = inside(building)
    names = {name.removesuffix(".__init__") for _, name, _ in modules}
    needs = {
        name: {other if other in names else other.rpartition(".")[0] for other in imported} & names - {name}
        for _, name, imported in modules
        if not name.endswith(".__init__")
    }
    while needs:
        free = {name for name, wanted in needs.items() if not wanted & needs.keys()}
        assert free, f"in a circle: {sorted(needs)}"
        needs = {name: wanted for name, wanted in needs.items() if name not in free}


def test_no_module_imports_the_simulated_job() -> None:
    """Only the command `simulate` imports agent.simulate, at its call."""
    for source in sources("agent", "exporters"):
        if source.name.startswith("agent/simulate/") or source.name == "agent/cli/main.py":
            continue
        assert not [module for module in source.imports if module.startswith("agent.simulate")], source.name


def test_modules_are_short() -> None:
    """No module has more than 300 lines."""
    long = {
        source.name for source in sources("agent", "exporters") if len(source.path.read_text().splitlines()) > MAX_LINES
    }
    assert not long
