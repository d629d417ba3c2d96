"""What must hold between the fields of one document. Each check stands alone."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from canaryctl.controller.artifact.mistakes import Loc, Mistake, quoted
from canaryctl.controller.artifact.schema import ArtifactDocument, Baseline
from canaryctl.controller.artifact.secrets import is_literal_secret

Check = Callable[[ArtifactDocument], Iterable[Mistake]]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZES: Loc = ("runtime", "graph", "capture_sizes")
_MODE: Loc = ("runtime", "graph", "mode")
_ENGINE: Loc = ("runtime", "engine")
_WARMUP: Loc = ("runtime", "warmup_plan")
_LIMITS: Loc = ("runtime", "limits")


def capture_sizes_rise(document: ArtifactDocument) -> Iterator[Mistake]:
    sizes = document.runtime.graph.capture_sizes or ()
    for index in range(1, len(sizes)):
        before, here = sizes[index - 1], sizes[index]
        if here <= before:
            fault = "twice" if here == before else f"after {before}"
            yield Mistake(
                (*_SIZES, index),
                f"found {here} {fault}, expected rising sizes, each once",
                needs=((*_SIZES, index - 1),),
            )
    if document.runtime.graph.capture_sizes == ():
        yield Mistake(_SIZES, "found no size, expected at least one; mode: NONE captures nothing")


def eager_captures_nothing(document: ArtifactDocument) -> Iterator[Mistake]:
    if not document.runtime.uses_graphs and document.runtime.graph.capture_sizes is not None:
        yield Mistake(
            _SIZES, "found sizes although mode is NONE; remove them, or give a mode", needs=(_MODE,)
        )


def warmup_is_within_grid(document: ArtifactDocument) -> Iterator[Mistake]:
    """A decode bucket is a captured size. With speculation the engine rounds the sizes, so
    that only the largest can be compared."""
    runtime = document.runtime
    sizes = runtime.graph.capture_sizes
    if not sizes or not runtime.uses_graphs:
        return
    query = 1 + (runtime.speculative.num_speculative_tokens if runtime.speculative else 0)
    for index, bucket in enumerate(runtime.warmup_plan.decode_buckets):
        if bucket * query > max(sizes) or (query == 1 and bucket not in sizes):
            near = min(sizes, key=lambda size: abs(size - bucket))
            yield Mistake(
                (*_WARMUP, "decode_buckets", index),
                f"found {bucket}, expected one of the capture sizes; the nearest is {near}",
                needs=(_SIZES, _MODE, ("runtime", "speculative")),
            )


def warmup_is_within_limits(document: ArtifactDocument) -> Iterator[Mistake]:
    plan, limits = document.runtime.warmup_plan, document.runtime.limits
    for field, buckets, limit_name, limit in (
        ("decode_buckets", plan.decode_buckets, "max_num_seqs", limits.max_num_seqs),
        (
            "mixed_token_buckets",
            plan.mixed_token_buckets,
            "max_num_batched_tokens",
            limits.max_num_batched_tokens,
        ),
    ):
        for index, bucket in enumerate(buckets):
            loc = (*_WARMUP, field, index)
            if bucket > limit:
                yield Mistake(
                    loc,
                    f"found {bucket}, expected at most {limit_name}, which is {limit}",
                    needs=((*_LIMITS, limit_name),),
                )
            if bucket in buckets[:index]:
                yield Mistake(loc, f"found {bucket} twice, expected each bucket once")


def one_way_to_start(document: ArtifactDocument) -> Iterator[Mistake]:
    engine = document.runtime.engine
    given = [key for key in ("command", "image", "venv") if getattr(engine, key) is not None]
    for key in given[1:]:
        yield Mistake(
            (*_ENGINE, key),
            f"found beside {given[0]}, expected at most one of the two",
            at_key=True,
        )


def gpus_hold_the_model(document: ArtifactDocument) -> Iterator[Mistake]:
    gpus, parallel = document.runtime.gpu.count, document.runtime.parallel
    needed = parallel.tensor * parallel.pipeline
    if 0 < gpus < needed:
        yield Mistake(
            ("runtime", "gpu", "count"),
            f"found {gpus}, expected at least {needed}: tensor {parallel.tensor} × "
            f"pipeline {parallel.pipeline}",
            needs=(("runtime", "parallel"),),
        )


def gates_are_named_once(document: ArtifactDocument) -> Iterator[Mistake]:
    names = [gate.name for gate in document.gates]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Mistake(
                ("gates", index, "name"), f"found {quoted(name)} again, expected each gate once"
            )


def a_fresh_baseline_has_room(document: ArtifactDocument) -> Iterator[Mistake]:
    """It takes as much traffic as the canary, and stable the rest."""
    if document.rollout.baseline is not Baseline.FRESH:
        return
    for index, step in enumerate(document.rollout.steps):
        if step.weight > 50:
            yield Mistake(
                ("rollout", "steps", index, "weight"),
                f"found {step.weight}, expected at most 50: with baseline: fresh the canary and "
                "its baseline take this share each",
                needs=(("rollout", "baseline"),),
            )


def secrets_are_references(document: ArtifactDocument) -> Iterator[Mistake]:
    """Literals end in the database, in process lists and in diffs; a reference does not."""
    engine = document.runtime.engine
    literals: list[tuple[Loc, str, object]] = [
        *(((*_ENGINE, "env", name), name, value) for name, value in engine.env.items()),
        *(
            ((*_ENGINE, "args", name), name, value)
            for name, given in engine.args.items()
            for value in (given if isinstance(given, tuple) else (given,))
        ),
        *(((*_ENGINE, "command", i), "", word) for i, word in enumerate(engine.command or ())),
    ]
    for loc, name, value in literals:
        if is_literal_secret(name, value):
            variable = re.sub(r"[^A-Za-z0-9]", "_", name).upper() or "NAME"
            yield Mistake(
                loc,
                "found what looks like a secret (not shown), expected a reference; move it to "
                f"the top level as secrets: {{{variable}: {{from_env: {variable}}}}}, which the "
                "engine gets in its environment",
            )


def environment_is_possible(document: ArtifactDocument) -> Iterator[Mistake]:
    env = document.runtime.engine.env
    for loc, name in (
        *(((*_ENGINE, "env", name), name) for name in env),
        *((("secrets", name), name) for name in document.secrets),
    ):
        if not _VARIABLE.fullmatch(name):
            yield Mistake(
                loc,
                "found a name no environment variable has, expected letters, digits and _",
                at_key=True,
            )
    for name, ref in document.secrets.items():
        if name in env:
            yield Mistake(
                ("secrets", name), "found in runtime.engine.env too; keep one", at_key=True
            )
        if ref.from_file is not None and not PurePosixPath(ref.from_file).is_absolute():
            yield Mistake(
                ("secrets", name, "from_file"),
                "found a relative path, expected an absolute one: it is read where the "
                "controller runs",
            )


CHECKS: tuple[Check, ...] = (
    capture_sizes_rise,
    eager_captures_nothing,
    warmup_is_within_grid,
    warmup_is_within_limits,
    one_way_to_start,
    gpus_hold_the_model,
    gates_are_named_once,
    a_fresh_baseline_has_room,
    secrets_are_references,
    environment_is_possible,
)
