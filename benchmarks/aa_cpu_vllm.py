"""A/A on real engines: two equal vLLM engines on the CPU under an hour of load, then one of them
with its CPU taken away.

    python -m benchmarks.aa_cpu_vllm record --out out/aa        (74 minutes)
    python -m benchmarks.aa_cpu_vllm judge out/aa               (the table)

``record`` needs CPU vLLM (tools/install-cpu-vllm).
"""

import argparse
import runpy
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._aa_judge import EQUAL, SLOWER, page
from benchmarks._aa_record import WARM_UP_S, engines, less_cpu, load, record
from tests.support.cpu_vllm import ROOT, venv

LOOK_S = 15.0
SLOW_LOOK_S = 5.0  # without a history eleven blocks of four looks are the least


def main() -> None:
    arguments = _parser().parse_args()
    arguments.command(arguments)


def _record(arguments: argparse.Namespace) -> None:
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    looks = round(arguments.minutes * 60 / LOOK_S)
    slow_looks = round(arguments.slow_minutes * 60 / SLOW_LOOK_S)
    with tempfile.TemporaryDirectory(prefix="canaryctl-aa-") as name:
        folder = Path(name)
        model = folder / "tiny"
        runpy.run_path(str(ROOT / "tools" / "random_model.py"))["write_model"](model, tiny=True)
        with (
            engines(folder, venv() / "bin" / "python", model, ("a", "b")) as running,
            load(folder, running, arguments.rate),
        ):
            time.sleep(WARM_UP_S)
            arms = ("baseline", "canary")
            if looks:
                record(out / EQUAL, running, looks=looks, look_s=LOOK_S, arms=arms)
            with less_cpu(running[1], arguments.busy):
                record(out / SLOWER, running, looks=slow_looks, look_s=SLOW_LOOK_S, arms=arms)


def _judge(arguments: argparse.Namespace) -> None:
    sys.stdout.write(page(arguments.folder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--out", type=Path, default=Path("out/aa"))
    recorder.add_argument("--minutes", type=float, default=60.0, help="of equal engines; 0: none")
    recorder.add_argument("--slow-minutes", type=float, default=12.0)
    recorder.add_argument("--rate", type=float, default=4.0, help="requests/s for each engine")
    recorder.add_argument("--busy", type=int, default=3, help="busy loops beside the slower one")
    recorder.set_defaults(command=_record)
    judges = commands.add_parser("judge")
    judges.add_argument("folder", type=Path)
    judges.set_defaults(command=_judge)
    return parser


if __name__ == "__main__":
    main()
