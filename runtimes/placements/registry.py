"""Placement name → placement."""

from collections.abc import Callable, Mapping
from pathlib import Path

from canaryctl.common.errors import UnknownNameError
from canaryctl.runtimes.placements.base import Placement
from canaryctl.runtimes.placements.process import ProcessPlacement

PLACEMENTS: Mapping[str, Callable[[Path], Placement]] = {ProcessPlacement.name: ProcessPlacement}


def placement(name: str, state_dir: Path) -> Placement:
    """The placement of that name; UnknownNameError lists those there are."""
    if name not in PLACEMENTS:
        raise UnknownNameError("placement", name, PLACEMENTS)
    return PLACEMENTS[name](state_dir)
