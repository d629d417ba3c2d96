"""What a calibration foretells, beside what an engine was measured to take."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._h200_buckets import table
from canaryctl.runtimes.grid.calibration import Calibration
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.simulator.graphs import GraphSet, StepMode


def start_table(cost: CostModel, record: Mapping[str, Any], max_num_seqs: int) -> str:
    """``record``: of `baseline show --json`, whose engines were started one after the other. Graph
    memory and capture time of what each captured."""
    rows = []
    for stage in record["stages"]:
        found = stage["start"]
        graphs = GraphSet.of(stage["mode"], tuple(found["captured_sizes"] or ()), max_num_seqs)
        if graphs.full or graphs.piecewise:
            measured = found["memory_bytes"].get("graphs"), found["stage_s"].get("capture")
            rows.append((stage["name"], *foretold_start(cost, graphs, *measured)))
    return table(("grid", "graphs", "graph memory, MiB", "capture, s"), rows)


def foretold_start(
    cost: CostModel, graphs: GraphSet, graph_bytes: float | None, capture_s: float | None
) -> tuple[str, str, str]:
    """How many graphs, their memory and their capture: foretold / measured."""
    measured_mib = None if graph_bytes is None else graph_bytes / MIB
    return (
        str(len(graphs.full) + len(graphs.piecewise)),
        both(cost.graph_bytes(graphs) / MIB, measured_mib, 1),
        both(cost.capture_s(graphs), capture_s, 2),
    )


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


def mean_step_s(
    cost: CostModel, buckets: Sequence[Mapping[str, Any]]
) -> tuple[float, float] | None:
    """The mean step of decodes alone, foretold and measured: each bucket by as many steps as there
    were, those without a graph among them. None where none was timed."""
    timed = [row for row in buckets if row["mean_s"] and row["pure"]]
    weight = sum(row["pure"] for row in timed)
    if not weight:
        return None
    foretold = sum(row["pure"] * _foretold_s(cost, row) for row in timed)
    return foretold / weight, sum(row["pure"] * row["mean_s"] for row in timed) / weight


def _foretold_s(cost: CostModel, row: Mapping[str, Any]) -> float:
    mode = StepMode(row["mode"])
    if mode is not StepMode.NONE:
        return cost.graph_s(mode, row["bucket"], pure_decode=True)
    return cost.no_graph_s(round(row["pure_tokens"] / row["pure"]), pure_decode=True)


def both(foretold: float, measured: float | None, digits: int) -> str:
    if measured is None:
        return "not said"
    apart = f" ({foretold / measured - 1:+.0%})" if measured else ""
    return f"{foretold:.{digits}f} / {measured:.{digits}f}{apart}"
