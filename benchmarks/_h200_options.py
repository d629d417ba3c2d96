"""What can be chosen on the benchmark's command line."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

STEPS = ("first", "graphs", "nine", "oom", "measured", "nine-2", "nine-3")


@dataclass(frozen=True, slots=True)
class Options:
    out: Path
    work: Path
    cpu: Path | None
    steps: tuple[str, ...]
    levels: tuple[int, ...]
    repeats: int
    cell_s: float
    prompt_tokens: int
    output_tokens: int
    fraction: float
    warm: tuple[int, ...]
    oom_room_gib: float
    oom_tries: int
    limit_s: float


def parse(argv: list[str], description: str) -> tuple[Options, bool]:
    """The options, and whether to leave the stable engine running."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--work", type=Path, default=Path(".h200"), help="state, kept between runs")
    parser.add_argument("--cpu", type=Path, help="rehearse with the CPU vLLM of this environment")
    parser.add_argument("--steps", default=",".join(STEPS), help="which, in this order")
    parser.add_argument("--levels", help="open requests; default 1,8,18,40,64 (CPU: 1,4,8)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cell", type=float, default=3.0, help="seconds of one measurement")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--fraction", type=float, default=0.2, help="of GPU memory, each engine")
    parser.add_argument("--warm", default="1,4,8,16,32", help="decode buckets to warm, on a GPU")
    parser.add_argument(
        "--oom-room",
        type=float,
        default=3.0,
        help="GiB that the KV cache of the engine that is to fail leaves free: weights, context "
        "and too little for its graphs",
    )
    parser.add_argument("--oom-tries", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1500, help="seconds; later steps are left")
    parser.add_argument("--keep", action="store_true", help="leave the stable engine running")
    given = parser.parse_args(argv)
    steps = tuple(given.steps.split(","))
    if unknown := sorted(set(steps) - set(STEPS)):
        parser.error(f"--steps: no step is named {', '.join(unknown)}; known: {', '.join(STEPS)}")
    levels = given.levels or ("1,8,18,40,64" if given.cpu is None else "1,4,8")
    options = Options(
        out=given.out.absolute(),
        work=given.work.absolute(),
        cpu=given.cpu,
        steps=steps,
        levels=_numbers(levels),
        repeats=given.repeats,
        cell_s=given.cell,
        prompt_tokens=given.prompt_tokens,
        output_tokens=given.output_tokens,
        fraction=given.fraction,
        warm=_numbers(given.warm),
        oom_room_gib=given.oom_room,
        oom_tries=given.oom_tries,
        limit_s=given.limit,
    )
    return options, given.keep


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
