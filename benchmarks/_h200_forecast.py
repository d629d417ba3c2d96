"""What a calibration foretells, beside what an engine was measured to take."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks._h200_buckets import ranged, table
from canaryctl.controller.baseline.figures import DecodeSteps
from canaryctl.controller.baseline.stages import OWN, PLANNED
from canaryctl.runtimes.grid.calibration import Calibration
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.simulator.graphs import GraphSet, StepMode

Record = Mapping[str, Any]
"""Of a baseline run, as `baseline run --json` prints it."""


def start_table(cost: CostModel, alone: Sequence[Record], max_num_seqs: int) -> str:
    """Graph memory and capture time of each grid: ``alone``, runs whose engines were started one at
    a time, several of each grid. The artifact's own is the planned one."""
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for record in alone:
        for stage in record["stages"]:
            name = PLANNED if stage["name"] == OWN else stage["name"]
            stages.setdefault(name, []).append(stage)
    rows = []
    for name, found in stages.items():
        starts = [stage["start"] for stage in found]
        sizes = tuple(starts[0]["captured_sizes"] or ())
        graphs = GraphSet.of(found[0]["mode"], sizes, max_num_seqs)
        if graphs.full or graphs.piecewise:
            graph_bytes = [start["memory_bytes"].get("graphs") for start in starts]
            capture_s = [start["stage_s"].get("capture") for start in starts]
            cells = foretold_start(cost, graphs, graph_bytes, capture_s)
            rows.append((name, str(len(starts)), *cells))
    return table(("grid", "starts", "graphs", "graph memory, MiB", "capture, s"), rows)


def foretold_start(
    cost: CostModel,
    graphs: GraphSet,
    graph_bytes: Sequence[float | None],
    capture_s: Sequence[float | None],
) -> tuple[str, str, str]:
    """How many graphs, their memory and their capture: foretold / measured, each start's."""
    return (
        str(len(graphs.full) + len(graphs.piecewise)),
        both(cost.graph_bytes(graphs) / MIB, _scaled(graph_bytes, 1 / MIB), 1),
        both(cost.capture_s(graphs), _scaled(capture_s, 1), 2),
    )


def _scaled(values: Sequence[float | None], by: float) -> list[float]:
    """None of them where one is not known."""
    known = [value * by for value in values if value is not None]
    return known if len(known) == len(values) else []


def step_table(cost: CostModel, record: Record) -> str:
    """The mean step of decodes in each repeat of each stage, and what it was foretold to be."""
    rows = []
    for stage in record["stages"]:
        repeats = [decodes(run["decode_steps"]) for run in stage["runs"]]
        compiled = stage["mode"] != "NONE"
        known = [mean_step_s(cost, steps, compiled=compiled) for steps in repeats]
        means = [mean for mean in known if mean is not None]
        if means:
            rows.append((stage["name"], *step_cells(means)))
    return table(("grid", "mean step of decodes, ms", "noise, ms"), rows)


SHOWN_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def calibrations_table(engine: Calibration, torch: Calibration) -> str:
    """Milliseconds of a step by size: the engine's, and those of the same layers in plain torch."""
    modes = ("FULL", "PIECEWISE", "EAGER")
    rows = [
        (str(size), *(_measured_ms(of, mode, size) for mode in modes for of in (engine, torch)))
        for size in SHOWN_SIZES
    ]
    head = [f"{mode}, {who}" for mode in modes for who in ("engine", "torch")]
    return table(("sequences", *head), rows)


def _measured_ms(of: Calibration, mode: str, size: int) -> str:
    found = of.step_ms[mode].get(size)
    return "–" if found is None else f"{found:.2f}"


def decodes(found: Iterable[Mapping[str, Any]]) -> list[DecodeSteps]:
    """Of their JSON."""
    return [DecodeSteps(**one) for one in found]


class MeanStep(NamedTuple):
    """Seconds. ``noise_s``: what the calibration states for such a mix of modes, one standard
    deviation; None where it does not of one of them."""

    foretold_s: float
    measured_s: float
    noise_s: float | None


def step_cells(repeats: Sequence[MeanStep]) -> tuple[str, str]:
    """Milliseconds: foretold / measured in each repeat, and the noise."""
    foretold_ms = 1000 * median(mean.foretold_s for mean in repeats)
    noise_ms = _scaled([mean.noise_s for mean in repeats], 1000)
    measured_ms = [1000 * mean.measured_s for mean in repeats]
    return both(
        foretold_ms, measured_ms, 2
    ), f"{median(noise_ms):.2f}" if noise_ms else "not stated"


def mean_step_s(
    cost: CostModel, steps: Iterable[DecodeSteps], *, compiled: bool = True
) -> MeanStep | None:
    """Of decodes alone: each size by as many steps as there were, those without a graph among them.
    None where none was timed. ``compiled``: whether those without a graph run compiled code."""
    timed = [(one, one.mean_s) for one in steps if one.mean_s is not None]
    count = sum(one.steps for one, _ in timed)
    if not count:
        return None

    def mean(values: Iterable[float]) -> float:
        return sum(one.steps * value for (one, _), value in zip(timed, values, strict=True)) / count

    without = "NONE" if compiled else "EAGER"
    kinds = [without if one.mode == StepMode.NONE.value else one.mode for one, _ in timed]
    noise_ms = cost.calibration.noise_ms
    return MeanStep(
        mean(_foretold_s(cost, one, compiled) for one, _ in timed),
        mean(mean_s for _, mean_s in timed),
        mean(noise_ms[kind] / 1000 for kind in kinds) if noise_ms.keys() >= {*kinds} else None,
    )


def _foretold_s(cost: CostModel, one: DecodeSteps, compiled: bool) -> float:
    mode = StepMode(one.mode)
    if mode is not StepMode.NONE:
        return cost.graph_s(mode, one.bucket, pure_decode=True)
    return cost.no_graph_s(round(one.tokens / one.steps), pure_decode=True, compiled=compiled)


def both(foretold: float, measured: Sequence[float], digits: int) -> str:
    """Foretold / measured, median and (least–most) where there are several, and how far apart."""
    if not measured:
        return "not said"
    middle = median(measured)
    apart = f" ({foretold / middle - 1:+.0%})" if middle else ""
    shown = ranged(measured, 1, digits) if len(measured) > 1 else f"{middle:.{digits}f}"
    return f"{foretold:.{digits}f} / {shown}{apart}"
