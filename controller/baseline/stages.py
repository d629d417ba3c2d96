"""The stages of a baseline run: the artifact without graphs, with the engine's default grid, and
with its own. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.spec import RuntimeSpec

EAGER, DEFAULT, OWN, PLANNED = "eager", "default", "own", "planned"
ALL: Final = (EAGER, DEFAULT, OWN)


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    runtime: RuntimeSpec

    @property
    def digest(self) -> str:
        return digest_of(self.runtime)


def stages_of(
    runtime: RuntimeSpec, engine: Engine, *, planned: bool, wanted: Sequence[str] = ()
) -> tuple[Stage, ...]:
    """The stages in the order in which they are run; none that would run the same twice.

    ``planned``: the artifact's grid was planned from traffic, and its stage is named so.
    ``wanted``: only those of :data:`ALL`; none: all. An artifact without graphs has the stage
    eager alone, one that asks for the default grid has none of its own.
    """
    for name in wanted:
        if name not in ALL:
            raise UnknownNameError("stage", name, ALL)
    own = PLANNED if planned else OWN
    found = {EAGER: Stage(EAGER, engine.eager(runtime) if runtime.uses_graphs else runtime)}
    if runtime.uses_graphs:
        graph = runtime.graph.model_copy(update={"capture_sizes": None})
        found[DEFAULT] = Stage(DEFAULT, runtime.model_copy(update={"graph": graph}))
        if runtime.graph.capture_sizes is not None:
            found[OWN] = Stage(own, runtime)
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise InputError(
            f"the artifact has no stage {', '.join(lacking)}: its graph mode is "
            f"{runtime.graph.mode.value} and it asks for "
            f"{'the default grid' if runtime.graph.capture_sizes is None else 'a grid'}; "
            f"expected of {', '.join(found)}"
        )
    return tuple(stage for name, stage in found.items() if not wanted or name in wanted)
