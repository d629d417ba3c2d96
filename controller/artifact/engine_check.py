"""What only the named engine can say of a document."""

from collections.abc import Callable, Collection, Iterator

from canaryctl.controller.artifact.checks import Check
from canaryctl.controller.artifact.mistakes import Mistake, did_you_mean, quoted
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.runtimes.engines.base import Engine


def engine_check(names: Collection[str], engine: Callable[[str], Engine]) -> Check:
    """A check that the engine is one of ``names``, and that its adapter finds no fault."""

    def check(document: ArtifactDocument) -> Iterator[Mistake]:
        name = document.runtime.engine.name
        if name not in names:
            allowed = sorted(names)
            yield Mistake(
                ("runtime", "engine", "name"),
                f"found {quoted(name)}, expected one of {', '.join(allowed)}"
                f"{did_you_mean(name, allowed)}",
            )
            return
        for fault in engine(name).check(document.runtime):
            yield Mistake(("runtime",), fault)

    return check
