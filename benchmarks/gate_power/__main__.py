"""``python -m benchmarks.gate_power``: all bars of the gates, in simulated worlds, as a table."""

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.gate_power import campaign, counting, experiments, promotions
from benchmarks.gate_power.experiments import Size
from benchmarks.gate_power.table import Report

SEED = 20_260


def measure(size: Size, seed: int, jobs: int) -> Report:
    began = time.monotonic()
    found = campaign.run(experiments.campaigns(size, seed), jobs)
    promoted = promotions.run(promotions.campaigns(size, seed + 100), jobs)
    errors = {
        name: counting.against_baseline(factor, size.judged, seed + 200 + n)
        for n, (name, factor) in enumerate((("equal", 1.0), ("twice", 2.0), ("four times", 4.0)))
    }
    misses = {
        name: counting.against_limit(share, size.judged, seed + 300 + n)
        for n, (name, share) in enumerate((("none", 0.0), ("1 %", 0.01), ("5 %", 0.05)))
    }
    busy = os.getloadavg()[1]
    cores = os.cpu_count() or 1
    return Report(
        found=found,
        promoted=promoted,
        errors=errors,
        misses=misses,
        repetitions=size.errors,
        seed=seed,
        seconds=time.monotonic() - began,
        cores=cores,
        load=f" shared with other work (load average {busy:.0f})" if busy > cores + 1 else "",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000, help="of rates that must be small")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="a file for the table, instead of stdout")
    given = parser.parse_args()
    n = given.repetitions
    size = Size(errors=n, power=max(1, n // 2), judged=max(1, n // 7), real=max(1, n // 10))
    said = measure(size, given.seed, given.jobs).markdown()
    if given.write is None:
        sys.stdout.write(said)
    else:
        given.write.write_text(said, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
