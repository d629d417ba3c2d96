"""The grid that `canaryctl grid plan` finds for the trace; what is foretold, and what came."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks._h200_buckets import UnsaidError, table
from benchmarks._h200_forecast import decodes, foretold_start, mean_step_s, step_cells
from canaryctl.common.metrics import Signal
from canaryctl.gates.deltas import Skipped, delta
from canaryctl.gates.samples import HistogramSet, Scrape
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.spec import RuntimeSpec

NOT_ITS_OWN: Mapping[str, Any] = {"graph_bytes": None, "stage_seconds": {}}


def write_counts(path: Path, before: Scrape, after: Scrape) -> None:
    """The steps between two scrapes as ``kind,size,count``, what the planner reads."""
    found = delta(before, after)
    if isinstance(found, Skipped):
        raise UnsaidError(f"no difference between the scrapes: {found.reason}")
    shapes = found.values[Signal.SHAPES]
    if not isinstance(shapes, HistogramSet):
        raise UnsaidError("the engine says nothing of the shapes of its steps")
    path.write_text("\n".join(["kind,size,count", *_rows(shapes)]) + "\n")


def _rows(shapes: HistogramSet) -> Iterator[str]:
    for labels, histogram in shapes.histograms.items():
        for (_, below), (edge, up_to) in pairwise([(0.0, 0), *histogram.buckets]):
            if up_to > below and not math.isinf(edge):
                yield f"{dict(labels)['kind']},{edge:g},{up_to - below}"


def plan(
    counts: Path, spec: RuntimeSpec, against: Sequence[int], calibration: Path | None
) -> dict[str, Any]:
    """The planner's own document. RuntimeError with its words where it has none."""
    argv = [sys.executable, "-m", "canaryctl.controller.cli", "grid", "plan", "--json"]
    argv += ["--counts", str(counts), "--mode", "FULL_AND_PIECEWISE", "--margin", "0%"]
    argv += ["--max-num-seqs", str(spec.limits.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(spec.limits.max_num_batched_tokens)]
    argv += ["--against", ",".join(map(str, against))]
    if calibration is not None:
        argv += ["--calibration", str(calibration)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"grid plan ended with {done.returncode}: {done.stderr[-600:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def forecast_table(
    engines: Mapping[str, Mapping[str, Any]], cost: CostModel, max_num_seqs: int
) -> str:
    """Predicted / measured, and how far apart. Memory and time of a capture are known only of an
    engine that was started alone: beside others it counts what they take meanwhile."""
    rows = []
    for name, found in engines.items():
        attested = found["attested"]
        sizes = [int(size) for size in attested.get("graph_sizes", "").split(",") if size.isdigit()]
        graphs = GraphSet.of(attested["graph_mode"], tuple(sizes), max_num_seqs)
        step = mean_step_s(cost, decodes(found["steps"]["decodes"]))
        if step is None or not (graphs.full or graphs.piecewise):
            continue
        log = found["log"] if found["started_alone"] else NOT_ITS_OWN
        measured = [log["graph_bytes"]], [log["stage_seconds"].get("capture")]
        rows.append((name, *foretold_start(cost, graphs, *measured), *step_cells([step])))
    head = ("grid", "graphs", "graph memory, MiB", "capture, s", "mean step of decodes, ms")
    return table((*head, "noise, ms"), rows)
