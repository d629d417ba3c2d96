"""`canaryctl grid calibrate`, `grid plan` and `baseline run` on one GPU with real vLLM: what the
planner foretells by the engine's own calibration beside what came, and eager, the default grid and
the planned one under the same load, in turns.

    python -m benchmarks.h200_baseline --out OUT
    python -m benchmarks.h200_baseline --out OUT --simulated      a rehearsal

The grid is planned from ``h200_shapes.csv``, the steps that the trace of benchmarks.h200_graphs
once had on an H200 (that benchmark writes its own; ``--counts FILE``, ``kind,size,count``, takes
another), written into the artifact and kept with it. Nothing else may use the GPU.
``--calibration FILE`` takes that one instead of measuring it.

It takes some twenty-five minutes. What is done is kept in ``--work``: cut off, the same command
goes on there, in the midst of the calibration too; without that folder it begins anew. ``--out``
has at any time what is done, and the page as soon as there is a baseline run to show. Before that
run the default and the planned grid are started ``--starts`` times each, one engine at a time: how
long a capture takes differs from start to start, and while other engines work.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import yaml

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_forecast import calibrations_table, start_table, step_table
from canaryctl.controller.cli.grid_print import noise
from canaryctl.runtimes.grid.calibration import Calibration, load_calibration
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.machine import inspect_machine

ROOT = Path(__file__).resolve().parents[1]
LOAD = {
    "phases": [{"rate": 6, "for": "3s"}, {"rate": 50, "for": "6s"}, {"rate": 20, "for": "3s"}],
    "prompt_tokens": {"min": 16, "max": 200},
    "output_tokens": {"min": 48, "max": 96},
}
LOAD_S = 12
SLO = {"ttft_p99": "200ms", "tpot_p99": "10ms"}  # what a reader of a chat hardly notices
MODEL = "shape of Qwen3-0.6B, random weights"
SHAPES = Path(__file__).with_name("h200_shapes.csv")
HEAD = """# Eager, the default grid and a planned one

    python -m benchmarks.h200_baseline --out OUT

on a host with an H200, vLLM 0.25.1, torch 2.11.0+cu130 and the project on its PYTHONPATH. The model
has the shape of Qwen3-0.6B and random weights. The grid is planned from
`benchmarks/h200_shapes.csv`, steps that the trace of `benchmarks.h200_graphs` had. A value is the
median and (least–most) of its repeats. Memory before and after capture is all that the GPU had in
use, by other engines too."""
REHEARSAL = "# A rehearsal with simulated engines: its figures are of no GPU"
FORECAST = """## What the planner foretold

By the calibration of {0}; {1}. Memory and capture time of its own grids were fitted within {2:.0%}.
Foretold / measured, from the log of engines that were started one at a time: the median and
(least–most)."""
STEPS = """The mean step of decodes in the run above, as foretold for the steps that there were and
as the engines timed them; noise: one standard deviation, as the calibration states it for their
modes."""
TORCH = """## Engine and plain torch

`canaryctl grid calibrate` with the engine, and `--torch` with layers of the same shape ({0}).
Milliseconds of a step of decodes:"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=Path, default=SHAPES)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--work", type=Path, default=Path(".h200-baseline"))
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--starts", type=int, default=3, help="of each grid")
    parser.add_argument("--simulated", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no command is left
    work = given.work.absolute() / ("rehearsal" if given.simulated else "measured")
    out = given.out.absolute()
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    file, load = work / "artifact.yaml", work / "load.yaml"
    runtime = _simulated() if given.simulated else _gpu(work)
    file.write_text(yaml.safe_dump(_artifact(runtime), sort_keys=False))
    load.write_text(yaml.safe_dump(LOAD, sort_keys=False))
    steps = Steps(work, out)
    calibration = (given.calibration or work / "calibration.json").absolute()
    if given.calibration is None:
        measure = ["grid", "calibrate", "--artifact", file, "--out", calibration]
        measure += [] if given.simulated else ["--model-words", MODEL]
        measure += ["--starts", given.starts]
        steps.once("calibrated", measure, inputs=[file], makes=["calibration.json"])
    planned = ["grid", "plan", "--counts", given.counts.absolute(), "--artifact", file]
    planned += ["--calibration", calibration]
    steps.run("plan.txt", [*planned, "--write", file])
    start = ["baseline", "run", file, "--load", load, "--for", "1s", "--repeats", 1, "--json"]
    alone = [(f"{n}-{stage}", stage) for n in range(given.starts) for stage in ("default", "own")]
    for name, stage in alone:
        steps.once(name, [*start, "--stage", stage], inputs=[file, load], state="alone")
    starts = [work / f"{name}.txt" for name, _ in alone]
    measured = ["baseline", "run", file, "--load", load, "--for", f"{LOAD_S}s"]
    measured += ["--repeats", given.repeats]
    steps.once("baseline", measured, inputs=[file, load])
    steps.run("baseline.json", ["baseline", "show", file, "--json"])
    head = REHEARSAL if given.simulated else HEAD
    made = out / "h200_baseline.md"
    made.write_text(page(work, starts, load_calibration(calibration), head))
    if not given.simulated:
        torch = ["grid", "calibrate", "--torch", sys.executable, "--option", "layers=28"]
        torch += ["--out", work / "torch.json"]
        steps.once("torch", torch, makes=["torch.json"])
        made.write_text(page(work, starts, load_calibration(calibration), head))
    return 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Commands whose results lie in ``work`` and, each as soon as it is there, in ``out``."""

    work: Path
    out: Path

    def once(
        self,
        name: str,
        arguments: Sequence[object],
        *,
        inputs: Sequence[Path] = (),
        makes: Sequence[str] = (),
        state: str = "state",
    ) -> None:
        """Run it and keep what it says as ``name.txt``; not again where it came to its end with the
        same arguments, ``inputs`` and machine, and what it ``makes`` is still there."""
        parts = [*map(str, arguments), *(path.read_text() for path in inputs)]
        asked = sha256("\0".join([*parts, repr(_machine())]).encode()).hexdigest()
        done, made = self.work / f"{name}.done", [f"{name}.txt", *makes]
        there = all((self.work / file).exists() for file in made)
        if there and done.exists() and done.read_text() == asked:
            print(f"{name}: done before", file=sys.stderr)
        else:
            done.unlink(missing_ok=True)
            self.run(f"{name}.txt", arguments, state)
            done.write_text(asked)
        for file in made:
            shutil.copy(self.work / file, self.out)

    def run(self, file: str, arguments: Sequence[object], state: str = "state") -> None:
        """Run a command and keep what it says; SystemExit when it fails. ``state``: where it keeps
        what it measured, so that `baseline show` shows the run that is meant."""
        argv = [sys.executable, "-m", "canaryctl.controller.cli", *map(str, arguments)]
        env = {**os.environ, "CANARYCTL_STATE_DIR": str(self.work / state)}
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                said, _ = process.communicate()
            except BaseException:
                process.terminate()  # it ends its engines, and keeps what it has measured
                process.wait()
                raise
        for folder in (self.work, self.out):
            (folder / file).write_text(said)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, arguments[:2]))} ended with {process.returncode}")


def _machine() -> list[tuple[str, str | None]]:
    """What figures depend on beside what is asked."""
    return [(gpu.name, gpu.driver) for gpu in inspect_machine().gpus]


def page(made: Path, starts: Sequence[Path], engine: Calibration, head: str) -> str:
    """Of what lies in ``made``; ``starts``: records of engines that were started alone; ``engine``:
    the calibration that it was planned with."""
    record = json.loads((made / "baseline.json").read_text())
    alone = [json.loads(path.read_text()) for path in starts]
    cost = CostModel(engine)
    parts = [
        head,
        f"```\n{(made / 'baseline.txt').read_text().strip()}\n```",
        FORECAST.format(engine.whose, noise(engine), engine.graphs_error),
        start_table(cost, alone, artifacts.MAX_NUM_SEQS),
        STEPS,
        step_table(cost, record),
    ]
    torch = made / "torch.json"
    if torch.exists():
        plain = load_calibration(torch)
        parts += [TORCH.format(plain.engine), calibrations_table(engine, plain)]
    return "\n\n".join(parts) + "\n"


def _gpu(work: Path) -> artifacts.Document:
    model = work / "model"
    subprocess.run([sys.executable, ROOT / "tools" / "random_model.py", model], check=True)
    site = next(iter(os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    engine = artifacts.gpu_engine(
        [sys.executable],
        str(Path(site).absolute()) if site else "",
        model,
        work / "vllm-cache",
        fraction=0.2,
        warm=[1],
    )
    return engine.variant(
        model={"id": str(model), "revision": "random-weights"},
        graph={"mode": "FULL_AND_PIECEWISE", "capture_sizes": artifacts.NINE},
    )


def _simulated() -> artifacts.Document:
    return {
        "engine": {"name": "simulated", "version": "0.25.1", "args": {"time_scale": 0.02}},
        "model": {"id": "qwen", "revision": "random-weights"},
        "graph": {"mode": "FULL_AND_PIECEWISE", "capture_sizes": artifacts.NINE},
        "limits": {"max_num_seqs": 128, "max_num_batched_tokens": 8192, "max_model_len": 2048},
    }


def _artifact(runtime: artifacts.Document) -> artifacts.Document:
    return {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": "qwen3-0.6b-shape",
        "version": "1",
        "service": artifacts.SERVICE,
        "runtime": runtime,
        "gates": [
            {"name": "engine_exit", "max": 0},
            *({"name": name, "max_seconds": limit} for name, limit in SLO.items()),
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
