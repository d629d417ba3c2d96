"""A calibration without an engine: layers of the model's shape in plain torch."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.runtimes.grid.calibration import Calibration
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of

TORCH_SCRIPT: Final = (
    Path(__file__).resolve().parents[2] / "runtimes" / "calibrator" / "canaryctl_calibrate_torch.py"
)


def calibrate_torch(python: str, options: Sequence[str], gpus: Sequence[int]) -> Calibration:
    """By the interpreter that has torch, on ``gpus`` (empty: what it finds); see
    ``runtimes/calibrator``. What plain torch cannot tell, a compiled step without a graph, is taken
    for its eager one."""
    environment = dict(os.environ)
    if gpus:
        # CUDA numbers the fastest GPU first unless told to count as the driver does.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    done = subprocess.run(
        [python, str(TORCH_SCRIPT), *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PermanentError(f"{python} could not measure: {done.stderr.strip()[-500:]}")
    return torch_calibration(json.loads(done.stdout))


def torch_calibration(found: dict[str, Any]) -> Calibration:
    """From the script's document. InputError where it captured nothing (no CUDA)."""
    shape = found["shape"]
    per_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * 2
    eager = next(run for run in found["runs"] if run["mode"] == "NONE")
    runs = [
        MeasuredRun(
            run["name"],
            run["mode"],
            tuple(run["sizes"]),
            max(run["sizes"], default=1),
            [(size, milliseconds) for size, milliseconds in run["step_ms"]],
            run.get("graph_mib"),
            run.get("capture_s"),
        )
        for run in found["runs"]
    ]
    captured = [run for run in runs if run.mode != "NONE"]
    if not captured:
        raise InputError("plain torch captured nothing: it found no CUDA device")
    # Beyond the last grid the eager steps once more, as steps without a graph: of a run that
    # captured nothing itself.
    last = captured[-1]
    beyond = [(size, ms) for size, ms in eager["step_ms"] if size > last.sizes[-1]]
    runs.append(MeasuredRun("beyond", last.mode, (), last.largest_decode, beyond))
    return calibration_of(
        runs,
        About(
            machine=found["machine"],
            engine=found["engine"],
            model="layers of "
            + ", ".join(f"{name} {value}" for name, value in sorted(shape.items())),
            method="plain torch CUDA graphs of layers with random weights, median step",
            assumed="steps without a graph are eager ones, not compiled; no sampling and no "
            "scheduler; the cache takes 90 % of free memory; prefill is no slower than launching",
            prefill_us_per_token=0.0,
            kv_bytes_per_token=per_token,
            kv_cache_tokens=max(1, int(0.9 * found["free_bytes"] / per_token)),
        ),
    )
