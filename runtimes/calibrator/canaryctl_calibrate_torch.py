"""What CUDA graphs cost without an engine: plain torch, on layers of a model's shape.

    python canaryctl_calibrate_torch.py --layers 28 --hidden 1024 --intermediate 3072 \
        --heads 16 --kv-heads 8 --head-dim 128 > runs.json

Run by the interpreter that has torch; needs nothing else. Layers of a decoder with random weights
decode one token for each of ``size`` sequences against a cache of ``--context`` tokens. Graphs are
captured as PyTorch's documentation asks: warm-up on a side stream first, one memory pool, the
largest first. FULL is one graph of all layers; PIECEWISE is a graph for each stretch between two
attentions, which run eagerly. Written as one JSON document: a run for each grid, with the GPU
memory and seconds that capturing took, and the median milliseconds of a step by size.

Without CUDA the steps run eagerly on the CPU, and nothing is captured: for trying this script.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as torch's own documentation has it

WARM_UP = 3  # runs before a capture
MIB = 2**20
DEFAULT = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
GRIDS = {
    "default": ("FULL_AND_PIECEWISE", DEFAULT),
    "piecewise": ("PIECEWISE", DEFAULT),
    "nine": ("FULL_AND_PIECEWISE", (1, 2, 4, 8, 12, 16, 24, 32, 48)),
    "dense64": ("FULL_AND_PIECEWISE", tuple(range(1, 65))),
}
TIMED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512)

Step = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int


class Layers:
    """The layers, with inputs and caches of the largest size; smaller ones use their beginning."""

    def __init__(self, shape: Shape, largest: int, device: str, dtype: torch.dtype) -> None:
        self.shape = shape
        rows = {"device": device, "dtype": dtype}
        query = shape.heads * shape.head_dim
        key = shape.kv_heads * shape.head_dim
        self.weights = [
            [
                torch.randn(out, inner, **rows) * inner**-0.5
                for out, inner in (
                    (query + 2 * key, shape.hidden),
                    (shape.hidden, query),
                    (2 * shape.intermediate, shape.hidden),
                    (shape.hidden, shape.intermediate),
                )
            ]
            for _ in range(shape.layers)
        ]
        self.input = torch.randn(largest, shape.hidden, **rows)
        cache = (largest, shape.kv_heads, shape.context, shape.head_dim)
        self.keys, self.values = torch.randn(cache, **rows), torch.randn(cache, **rows)
        self.split = [query, key, key]

    def before(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, x.shape[-1:]), self.weights[layer][0])

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        size = qkv.shape[0]
        query = qkv[:, : self.split[0]].view(size, self.shape.heads, 1, self.shape.head_dim)
        out = F.scaled_dot_product_attention(
            query, self.keys[:size], self.values[:size], enable_gqa=True
        )
        return out.reshape(size, -1)

    def after(self, layer: int, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        _, out, up, down = self.weights[layer]
        x = x + F.linear(attended, out)
        gate, value = F.linear(F.rms_norm(x, x.shape[-1:]), up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * value, down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in range(self.shape.layers):
            x = self.after(layer, x, self.attention(self.before(layer, x)))
        return x


def eager_step(layers: Layers, size: int) -> Step:
    return lambda: layers.forward(layers.input[:size])


def captured(step: Step, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of ``step``, and its output, which every replay writes anew."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = step()
    return graph, output


def full_step(layers: Layers, size: int, pool: Any) -> Step:
    graph, _ = captured(eager_step(layers, size), pool)
    replay: Step = graph.replay
    return replay


def piecewise_step(layers: Layers, size: int, pool: Any) -> Step:
    """Graphs between attentions: what is after one and before the next is one piece."""
    graph, qkv = captured(lambda: layers.before(0, layers.input[:size]), pool)
    pieces: list[tuple[Any, Any, Any]] = [(graph, qkv, None)]
    x = layers.input[:size]
    for layer in range(layers.shape.layers):
        attended = torch.empty_like(layers.attention(qkv))

        def piece(
            layer: int = layer, x: torch.Tensor = x, attended: torch.Tensor = attended
        ) -> tuple[torch.Tensor, torch.Tensor]:
            y = layers.after(layer, x, attended)
            last = layer + 1 == layers.shape.layers
            return y, y if last else layers.before(layer + 1, y)

        graph, (x, qkv) = captured(piece, pool)
        pieces.append((graph, qkv, attended))

    def step() -> None:
        pieces[0][0].replay()
        for (_, qkv, _), (graph, _, attended) in pairwise(pieces):
            attended.copy_(layers.attention(qkv))
            graph.replay()

    return step


def milliseconds(step: Step, repeats: int, synchronise: Step) -> float:
    """The median of ``repeats`` steps, each until the device has finished."""
    for _ in range(WARM_UP):
        step()
    found = []
    for _ in range(repeats):
        synchronise()
        begun = time.perf_counter()
        step()
        synchronise()
        found.append((time.perf_counter() - begun) * 1000)
    return statistics.median(found)


def run_grid(
    name: str, mode: str, sizes: Sequence[int], layers: Layers, timed: Sequence[int], repeats: int
) -> dict[str, Any]:
    """Capture one grid, the largest size first, and time some of its sizes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    begun = time.perf_counter()
    pool = torch.cuda.graph_pool_handle()
    steps = {}
    kinds = {"PIECEWISE": piecewise_step}
    if mode == "FULL_AND_PIECEWISE":
        kinds["FULL"] = full_step
    for kind, make in kinds.items():
        for size in sorted(sizes, reverse=True):
            steps[kind, size] = make(layers, size, pool)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    left, _ = torch.cuda.mem_get_info()
    best = "FULL" if "FULL" in kinds else "PIECEWISE"
    return {
        "name": name,
        "mode": mode,
        "sizes": list(sizes),
        "capture_s": seconds,
        "graph_mib": (free - left) / MIB,
        "step_ms": [
            [size, milliseconds(steps[best, size], repeats, torch.cuda.synchronize)]
            for size in timed
            if size in sizes
        ],
    }


def measure(shape: Shape, device: str, repeats: int, timed: Sequence[int]) -> dict[str, Any]:
    on_gpu = device == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    largest = max(DEFAULT) if on_gpu else max(timed)
    layers = Layers(shape, largest, device, dtype)
    synchronise: Step = torch.cuda.synchronize if on_gpu else lambda: None
    eager = [[size, milliseconds(eager_step(layers, size), repeats, synchronise)] for size in timed]
    runs = [{"name": "eager", "mode": "NONE", "sizes": [], "step_ms": eager}]
    if on_gpu:
        for name, (mode, sizes) in GRIDS.items():
            runs.append(run_grid(name, mode, sizes, layers, timed, repeats))
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else "CPU, nothing captured",
        "engine": f"plain torch {torch.__version__}, no engine",
        "free_bytes": torch.cuda.mem_get_info()[0] if on_gpu else 0,
        "shape": vars(shape),
        "runs": runs,
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("layers", 28),
        ("hidden", 1024),
        ("intermediate", 3072),
        ("heads", 16),
        ("kv-heads", 8),
        ("head-dim", 128),
        ("context", 512),
        ("repeats", 30),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--timed", default=",".join(map(str, TIMED)), help="sizes, with commas")
    given = vars(parser.parse_args(arguments))
    device, repeats = given.pop("device"), given.pop("repeats")
    timed = [int(size) for size in given.pop("timed").split(",")]
    with torch.inference_mode():
        found = measure(Shape(**given), device, repeats, timed)
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
