"""Checks of a document by those who know: the named engine and the named gates."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.controller.artifact.checks import Check
from canaryctl.controller.artifact.mistakes import Loc, Mistake, did_you_mean, quoted
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.gates.spec import GateSpec
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.spec import RuntimeSpec

# What is read of the engine's metrics alone: without it a gate could never conclude.
_OF_METRICS_ALONE = frozenset(
    {
        Signal.TTFT,
        Signal.TPOT,
        Signal.ITL,
        Signal.E2E,
        Signal.PREFILL,
        Signal.REQUESTS,
        Signal.ERRORS,
        Signal.RUNNING,
        Signal.WAITING,
        Signal.CACHE_CONFIG,
        Signal.STEPS,
        Signal.TOKENS_ACTUAL,
        Signal.TOKENS_PADDED,
        Signal.STEP_TIME,
        Signal.ATTESTATION,
    }
)

_PLACE = re.compile(r"([a-z_]+(?:\.[A-Za-z0-9_-]+)*)(: | )")


def engine_check(names: Collection[str], engine: Callable[[str], Engine]) -> Check:
    """A check that the engine is one of ``names``, and that its adapter finds no fault."""

    def check(document: ArtifactDocument) -> Iterator[Mistake]:
        name = document.runtime.engine.name
        if name in names:
            yield from map(_engine_fault, engine(name).check(document.runtime))
            return
        allowed = sorted(names)
        yield Mistake(
            ("runtime", "engine", "name"),
            f"found {quoted(name)}, expected one of {', '.join(allowed)}"
            f"{did_you_mean(name, allowed)}",
        )

    return check


def _engine_fault(fault: str) -> Mistake:
    """A fault begins with the place it is at, ``graph.capture_sizes: …``, below ``runtime``."""
    place = _PLACE.match(fault)
    if place is None:
        return Mistake(("runtime",), fault)
    loc: Loc = tuple(place[1].split("."))
    if loc[0] not in RuntimeSpec.model_fields:
        return Mistake(("runtime",), fault)
    return Mistake(("runtime", *loc), fault[place.end() :] if place[2] == ": " else fault)


def gate_check(
    check_specs: Callable[[Sequence[GateSpec]], Iterable[tuple[int, str, str]]],
) -> Check:
    """A check by ``canaryctl.gates.registry.check``: (index, field, message) of each mistake."""

    def check(document: ArtifactDocument) -> Iterator[Mistake]:
        for index, field, message in check_specs(document.gates):
            yield Mistake(("gates", index, field), message)

    return check


def signals_check(
    names: Collection[str],
    engine: Callable[[str], Engine],
    needs: Callable[[GateSpec], frozenset[AnySignal]],
) -> Check:
    """A check that the engine, in its version, tells what each gate reads. ``needs``: by
    ``canaryctl.gates.registry.needs``; empty for a gate that is not known or has no limit."""

    def check(document: ArtifactDocument) -> Iterator[Mistake]:
        runtime = document.runtime.engine
        if runtime.name not in names:
            return
        try:
            told = engine(runtime.name).metrics(runtime.version)
        except InputError:
            return  # a version that it does not know is a fault of its own
        for index, gate in enumerate(document.gates):
            read = {signal for signal in needs(gate) if isinstance(signal, Signal)}
            untold = sorted((read & _OF_METRICS_ALONE) - told.keys())
            if untold:
                yield Mistake(
                    ("gates", index, "name"),
                    f"{gate.name} reads {', '.join(untold)}, which no metric of {runtime.name}"
                    f" {runtime.version} tells: it could never pass; leave the gate out",
                )

    return check
