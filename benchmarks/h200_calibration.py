"""The packaged calibration, of starts that `canaryctl grid calibrate` kept on two H200 hosts.

    python -m benchmarks.h200_calibration --out runtimes/grid/h200_qwen3_0.6b.json \\
        --page docs/benchmarks/h200_calibration.md

``h200_starts`` has what the command kept beside its calibration. Host a had its one GPU for that
alone and was gone before the end; its steps are as the command said them, in hundredths of a
millisecond. On host b other engines worked on another GPU. One engine is slower than the next at
everything, and so is one host: of ten engines on two hosts less of that is left in the difference
between two sizes, which is what a plan hangs on.

The memory of the sparse grid does not count. It goes from 64 tokens to 512 at once, and took half
of what grids with sizes in between let one expect; the command starts another one since, and no
planned grid is like it. That of a planned grid of host b does in its place, and not its time: other
engines were on its GPU.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_buckets import table
from canaryctl.controller.calibration.kept import MeasuredStart, start_of
from canaryctl.controller.cli.grid_print import noise
from canaryctl.runtimes.grid.calibration import GRAPH_KINDS, Calibration, packaged
from canaryctl.runtimes.grid.cost import MIB, CostModel
from canaryctl.runtimes.grid.fit import CaptureRun, fit_graph_cost
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of
from canaryctl.runtimes.simulator.graphs import GraphSet

STARTS = Path(__file__).with_name("h200_starts")
SPARSE = "sparse"
BOTH = "FULL_AND_PIECEWISE"
PLANNED = (
    ((1, 4, 5, 9, 48, 64, 76, 84, 100, 137, 177, 249, 308), 138.0),
    ((1, 4, 5, 6, 7, 8, 10, 48, 64, 76, 83, 100, 148, 186, 251, 366), 162.0),
    ((1, 4, 6, 8, 9, 10, 48, 64, 76, 84, 100, 129, 159, 194), 150.0),
)
"""Sizes and MiB of three planned grids that took no part: of runs of h200_baseline (the first) and
h200_graphs on three hosts, by the log of their engines."""
PAGE = """# What graphs take, foretold and measured

    python -m benchmarks.h200_calibration --out runtimes/grid/h200_qwen3_0.6b.json \\
        --page docs/benchmarks/h200_calibration.md

Of recorded starts (`benchmarks/h200_starts`), {whose}; {noise}.

## Capture

Each grid's starts on both hosts, mean and (least–most), and what the calibration of the other
grids foretells. No forecast is nearer to one start than its grid's starts are to each other. Beside
other engines on the same GPU single starts took 4.2 s of the default grid and 2.8 s of 27 graphs.

{capture}

## Memory

Grids that took no part in the calibration; the last is much like one that did. Memory is the same
at every start, within 2 MiB.

{memory}
"""
EARLIER_PREFILL_US = 3.857657843158735
"""Microseconds of a prompt token on a third host, by the same command before its starts were
recorded. Of a model this small launching takes longer than 2,000 prompt tokens do, and what is left
of their difference is mostly noise: the mean of both hosts counts."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="also write what it foretells of recorded starts")
    given, found = parser.parse_args(), calibration()
    given.out.write_text(found.to_json())
    if given.page is not None:
        given.page.write_text(page(found))
    fitted = f"graphs fitted within {found.graphs_error:.1%}"
    print(f"{given.out}: {found.whose}; {noise(found)}; {fitted}")
    return 0


@dataclass(frozen=True, slots=True)
class Host:
    """``modes``: by grid. ``starts``: of each grid, in order."""

    name: str
    modes: Mapping[str, str]
    starts: Mapping[str, Sequence[MeasuredStart]]

    def runs(self) -> Mapping[str, MeasuredRun]:
        """By grid; what graphs took as the median of its starts."""
        return {
            grid: MeasuredRun(
                f"{grid} on host {self.name}",
                self.modes[grid],
                starts[0].sizes,
                artifacts.MAX_NUM_SEQS,
                starts[0].step_ms,
                None if grid == SPARSE else _told(start.graph_mib for start in starts),
                _told(start.capture_s for start in starts),
            )
            for grid, starts in self.starts.items()
        }


def hosts() -> Sequence[Host]:
    found = []
    for path in sorted(STARTS.glob("*.json")):
        document = json.loads(path.read_text())
        starts: dict[str, list[MeasuredStart]] = {}
        for start in map(start_of, document["starts"]):
            starts.setdefault(start.name.partition("-")[0], []).append(start)
        modes = {name: mode for name, mode, *_ in document["asked"]["set of grids"]}
        found.append(Host(path.stem, modes, starts))
    return found


def calibration() -> Calibration:
    known = hosts()
    eagers = [start for host in known for start in host.starts["eager"]]
    (eager,) = (start for start in eagers if start.prefill_us_per_token is not None)
    assert eager.prefill_us_per_token is not None
    assert eager.kv_bytes_per_token is not None
    assert eager.kv_cache_tokens is not None
    return calibration_of(
        [run for host in known for run in host.runs().values()],
        About(
            machine=f"{eager.machine}; {len(known)} hosts",
            engine=eager.engine,
            model="shape of Qwen3-0.6B, random weights, max_model_len 2048",
            method="per batch the median step as the engine counted it, the median of 5 rounds, of "
            "engines on two hosts; graphs by the median of each host's starts; prefill from the "
            "difference of two prompt lengths, graphs off, on one of them and a third",
            assumed="",
            prefill_us_per_token=fmean([EARLIER_PREFILL_US, eager.prefill_us_per_token]),
            kv_bytes_per_token=eager.kv_bytes_per_token,
            kv_cache_tokens=eager.kv_cache_tokens,
        ),
    )


def page(found: Calibration) -> str:
    rows, taken = [], captures()
    for name, (graphs, seconds) in taken.items():
        foretold = foretold_by_others(name, taken)
        apart = f"{foretold:.2f} ({foretold / fmean(seconds) - 1:+.0%})"
        spread = f"{fmean(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"
        rows.append((name, _count(graphs), str(len(seconds)), spread, apart))
    planned = []
    for sizes, mib in PLANNED:
        graphs = GraphSet.of(BOTH, sizes, artifacts.MAX_NUM_SEQS)
        foretold = CostModel(found).graph_bytes(graphs) / MIB
        apart = f"{foretold:.0f} ({foretold / mib - 1:+.0%})"
        planned.append((", ".join(map(str, sizes)), _count(graphs), f"{mib:.0f}", apart))
    return PAGE.format(
        whose=found.whose,
        noise=noise(found),
        capture=table(("grid", "graphs", "starts", "measured, s", "foretold, s"), rows),
        memory=table(("sizes", "graphs", "measured, MiB", "foretold, MiB"), planned),
    )


Captures = Mapping[str, tuple[GraphSet, Sequence[float]]]


def captures() -> Captures:
    """By grid, the seconds of each of its starts on both hosts."""
    found: dict[str, tuple[GraphSet, list[float]]] = {}
    for host in hosts():
        for name, run in host.runs().items():
            told = [one.capture_s for one in host.starts[name] if one.capture_s is not None]
            if told:
                found.setdefault(name, (run.graphs, []))[1].extend(told)
    return found


def foretold_by_others(grid: str, taken: Captures) -> float:
    """Seconds of a capture of ``grid``, by the mean captures of all other grids."""
    others = [
        CaptureRun(name, its.full, its.piecewise, 1.0, fmean(seconds))  # memory is not asked
        for name, (its, seconds) in taken.items()
        if name != grid
    ]
    fit = fit_graph_cost(others)
    by = replace(packaged(), graphs=dict.fromkeys(GRAPH_KINDS, fit.cost), pool=fit.pool)
    return CostModel(by).capture_s(taken[grid][0])


def _count(graphs: GraphSet) -> str:
    return str(len(graphs.full) + len(graphs.piecewise))


def _told(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


if __name__ == "__main__":
    sys.exit(main())
