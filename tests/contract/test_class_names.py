"""One word, one meaning: no class name stands for two things."""

from __future__ import annotations

import ast
from collections import defaultdict

from test_imports import ROOT, sources


def test_no_two_classes_share_a_name() -> None:
    """A public class name of the agent, of the simulated job and of the exporters is used once."""
    places = defaultdict(set)
    for path, tree in sources("agent", "exporters"):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
