"""The grids that a calibration starts engines with, and whether they can be measured. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.controller.gridsetup import rules_of
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.spec import GraphMode, GraphSpec, RuntimeSpec, WarmupPlan
from canaryctl.runtimes.warmup import plan_requests

_FEW: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_BATCHES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DENSE: Final = 64
_SPREAD: Final = 1.4
_FINDS_TOKENS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that propose as many tokens as they find, so that decodes are of no one size."""


@dataclass(frozen=True, slots=True)
class MeasuredGrid:
    """``graph``: what the engine is asked for. ``batches``: sequences that decode together; none:
    only what its graphs take is measured."""

    name: str
    graph: GraphSpec
    batches: tuple[int, ...]

    def runtime(self, artifact: RuntimeSpec) -> RuntimeSpec:
        """What is started: the artifact's runtime with this grid and without a warm-up."""
        return artifact.model_copy(update={"graph": self.graph, "warmup_plan": WarmupPlan()})


def grids(runtime: RuntimeSpec) -> tuple[MeasuredGrid, ...]:
    """Eager, the default in both modes, and a small, a dense and a spread one: enough to tell what
    having graphs costs from what each costs, from what its size adds and from what the largest one
    takes. The spread one goes up to the default's largest as planned grids do, further at each
    size; nothing runs on it. Sizes are whole decodes: with speculative decoding, so many tokens for
    each sequence. InputError where the limits leave no batch beyond a grid."""
    rules = rules_of(runtime)
    tokens = rules.decode_tokens
    most = rules.largest_decode // tokens
    if most < 2:
        raise InputError(
            f"the limits let {most} sequence decode at once: expected 2 at least, one for a grid "
            "and one beyond it; raise limits.max_num_seqs or max_num_batched_tokens"
        )
    batches = tuple(size for size in _BATCHES if size <= most)
    both = GraphMode.FULL_AND_PIECEWISE
    few = tuple(size for size in _FEW if size <= most // 2)
    beyond = next((size for size in batches if size > few[-1]), most)
    # Without graphs it is launching that takes the time, whatever the batch: every other will do.
    apart = tuple(sorted({*batches[::2], batches[-1]}))
    dense = range(1, min(most, _DENSE) + 1)
    largest = max(rules_of(runtime, both.value).default(), default=0)

    def asked(mode: GraphMode, sequences: tuple[int, ...] | range) -> GraphSpec:
        return GraphSpec(mode=mode, capture_sizes=tuple(tokens * size for size in sequences))

    found = [
        MeasuredGrid("eager", GraphSpec(mode=GraphMode.NONE), apart),
        MeasuredGrid("default", GraphSpec(mode=both), batches),
        MeasuredGrid("piecewise", GraphSpec(mode=GraphMode.PIECEWISE), batches),
        MeasuredGrid("few", asked(both, few), (*few, beyond)),
        MeasuredGrid("dense", asked(both, dense), batches[:4]),
    ]
    if largest:
        found.append(MeasuredGrid("spread", asked(both, _spread(largest // tokens)), ()))
    return tuple(found)


def _spread(largest: int) -> tuple[int, ...]:
    """From 1 to ``largest``, each some :data:`_SPREAD` times the one before."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, round(sizes[-1] * _SPREAD))))
    return tuple(sizes)


def require_measurable(runtime: RuntimeSpec, engine: Engine) -> None:
    """InputError says all that keeps the grids from being started or their steps from being
    timed: before the first start, and not after it."""
    faults = list(_untimed(runtime, engine))
    for grid in grids(runtime):
        spec = grid.runtime(runtime)
        faults += (f"{grid.name}: {fault}" for fault in engine.check(spec))
        plan_requests(WarmupPlan(decode_buckets=grid.batches), spec.limits)
    if faults:
        raise InputError("\n".join(dict.fromkeys(faults)))


def _untimed(runtime: RuntimeSpec, engine: Engine) -> Iterator[str]:
    if Signal.STEP_TIME not in engine.metrics(runtime.engine.version):
        yield f"{engine.name} does not say how long its steps take; calibrate with --torch instead"
    if runtime.gpu.count == 0 and not engine.simulated:
        yield "gpu.count is 0: graphs are captured on a GPU alone"
    if runtime.parallel.pipeline > 1:
        yield (
            f"parallel.pipeline is {runtime.parallel.pipeline}: several steps are under way at "
            "once, and the time of one is not known; expected 1"
        )
    if runtime.engine.args.get("data-parallel-size", 1) != 1:
        yield (
            "engine.args.data-parallel-size: a batch would be spread over several engines; leave "
            "it out"
        )
    speculative = runtime.speculative
    if speculative is not None and speculative.method in _FINDS_TOKENS:
        yield (
            f"speculative.method {speculative.method} proposes as many tokens as it finds, so that "
            "a step's size is not known beforehand; calibrate without speculative"
        )
