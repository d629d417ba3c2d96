"""The results as the page docs/benchmarks/h200_graphs.md. Pure: the results in, Markdown out."""

from collections.abc import Mapping
from typing import Any

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_attested import attested_table
from benchmarks._h200_buckets import bucket_table, overhead_table, summary_table
from benchmarks._h200_parity import parity_table
from benchmarks._h200_planned import forecast_table
from canaryctl.controller.cli.grid_print import noise
from canaryctl.runtimes.grid.cost import CostModel

HEAD = """# Graphs by captured size

Real vLLM on a GPU, one command:

    python -m benchmarks.h200_graphs --out OUT

on a host with vLLM 0.25.1, torch 2.11.0+cu130 and the project on its PYTHONPATH (six engines at
once, eight minutes; `--calibration` of `benchmarks.h200_baseline`). The model has the shape of
Qwen3-0.6B and random weights. Memory and time of a capture are shown for the engine that was
started alone.

Machine: {}

The same requests on each runtime, in turns. Shares are of steps of decodes alone."""

OVERHEAD = """## What the probe costs

TPOT p50 of the default grid with the probe and without, measured in pairs one right after the
other: the median and (least–most)."""


FORECAST = """## The planner's forecast

Predicted / measured: by the calibration of {}; {}; and by the engine's log and the probe. The mean
step is of decodes alone, of each size by as many steps as there were; noise: what the calibration
states for their modes."""


ATTESTED = """## Attested against declared

What each was asked to be, and what its engine says that it is, compared by the gate
`attestation`."""


PARITY = """## What they say

The answers to the same prompts, greedily, in batches of 1 to 32, against those of the eager runtime
in small batches: prompts with another token anywhere, by its id, and the mean difference of
log-probabilities before it. The eager runtime is asked in the same batches too, to see what the
batch changes."""


def page(results: Mapping[str, Any], cost: CostModel, note: str = "") -> str:
    engines = {n: e for n, e in results["engines"].items() if "steps" in e}
    parts = [
        HEAD.format(f"{results['machine']}.{f' {note}' if note else ''}"),
        summary_table(engines),
        ATTESTED,
        attested_table(results["engines"]),
    ]
    for name, found in engines.items():
        attested = found["attested"]
        mode, sizes = (attested.get(f"graph_{what}", "unknown") for what in ("mode", "sizes"))
        asked = f"{found['requests']} requests, {found['failed']} of them failed"
        said = f"Mode {mode}; {asked}; ready after {found['ready_s']:.0f} s. Sizes: {sizes}."
        parts += [f"## {name}\n\n{said}", bucket_table(found)]
    parts += [FORECAST.format(cost.calibration.whose, noise(cost.calibration))]
    parts += [forecast_table(engines, cost, artifacts.MAX_NUM_SEQS)]
    parts += [PARITY, parity_table(results["parity"])]
    parts += [OVERHEAD, overhead_table(results["overhead"])]
    if results["not_run"]:
        parts.append("Not done: " + "; ".join(results["not_run"]) + ".")
    return "\n\n".join(parts) + "\n"
