"""The gates themselves, driven look by look over a simulated release."""

import math
from collections.abc import Iterator, Sequence

from benchmarks.gate_power.forms import ALPHA, BETA, MARGIN, TOLERANCE, Known, grid
from benchmarks.gate_power.independent import LOOK_S, LOOKS
from benchmarks.gate_power.ruler import Counts, Path, Ruler
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.units import format_ratio
from canaryctl.gates import registry
from canaryctl.gates.base import Gate, GateContext, Look
from canaryctl.gates.history import QUANTILES, AaHistory, Dependence
from canaryctl.gates.outcome import GateResult
from canaryctl.gates.readings import Buckets
from canaryctl.gates.samples import ArmWindow, Delta, Histogram
from canaryctl.gates.spec import GateSpec


def aa_history(known: Known, ruler: Ruler, signal: Signal) -> AaHistory | None:
    """The history that says what is ``known``."""
    if known.past is None:
        return None
    found: dict[tuple[AnySignal, float], Dependence] = {
        (signal, QUANTILES[name]): Dependence(phi, upper, max(1, int(looks)), 10, 12)
        for name, (looks, phi, upper, passes) in known.methods.items()
        if passes
    }
    past = Buckets(tuple(map(float, grid(ruler))), tuple(map(int, known.past)))
    return AaHistory(LOOK_S, LOOKS * LOOK_S, found, {signal: past})


def latency_gate(
    form: str,
    known: Known,
    ruler: Ruler,
    *,
    signal: Signal = Signal.TTFT,
    share: float = 0.1,
    detectable: float = 0.5,
) -> Gate:
    """``form``: of ``forms.FORMS``; ``share``: the canary's of all observations."""
    name = signal.value if form == "multi" else f"{signal.value}_{form}"
    limits = {"max_regression": TOLERANCE, "margin": MARGIN, "alpha": ALPHA, "beta": BETA}
    said = {limit: format_ratio(ratio) for limit, ratio in limits.items()}
    spec = GateSpec.model_validate({"name": name, **said})
    history = aa_history(known, ruler, signal)
    context = GateContext(1, detectable, LOOK_S, share, history=history)
    return registry.build(spec, context)


def results(gate: Gate, path: Path, signal: Signal = Signal.TTFT) -> Iterator[GateResult]:
    """What the gate says after each look."""
    state = gate.start()
    for look in looks(path, signal):
        state, result = gate.look(state, look)
        yield result


def looks(path: Path, signal: Signal = Signal.TTFT) -> Iterator[Look]:
    edges = [*map(float, path.ruler.fine_edges()), math.inf]
    for index, (canary, baseline) in enumerate(zip(*path.fine(), strict=True)):
        yield Look(
            LOOK_S * (index + 1),
            ArmWindow((_delta("canary", canary, edges, signal),), 1),
            ArmWindow((_delta("baseline", baseline, edges, signal),), 1),
        )


def history_looks(engines: Counts, ruler: Ruler, signal: Signal = Signal.TTFT) -> list[ArmWindow]:
    """An hour of equal engines, as ``history.learn`` takes it."""
    edges = [*map(float, ruler.fine_edges()), math.inf]
    fine = engines[:, :, ruler.fine]
    return [
        ArmWindow(
            tuple(_delta(f"e{n}", fine[n, look], edges, signal) for n in range(len(fine))),
            len(fine),
        )
        for look in range(fine.shape[1])
    ]


def _delta(instance: str, counts: Counts, edges: Sequence[float], signal: Signal) -> Delta:
    buckets = tuple(zip(edges, map(int, counts), strict=True))
    return Delta(instance, LOOK_S, {signal: Histogram(buckets, 0.0)})
