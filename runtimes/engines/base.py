"""What an engine adapter must answer. Adapters are pure: no I/O, no clock.

Adding an engine is one module with a class that satisfies :class:`Engine`, one line in
``registry.py`` and the contract tests of ``tests/contract/test_engines.py``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from canaryctl.common.metrics import MetricRef, Signal
from canaryctl.runtimes.spec import RuntimeSpec

NO_SIZES: Final = "none"
"""How a grid without a size is declared and attested."""


class Stage(StrEnum):
    """Stages of readiness, in order. Users' traffic comes after READY alone."""

    STARTED = "started"  # the process runs
    LOADED = "loaded"  # the model's weights are in memory
    COMPILED = "compiled"  # compilation complete (or skipped)
    CAPTURED = "captured"  # required buckets captured (or no graphs asked for)
    WARMED = "warmed"  # every bucket of the warm-up plan ran
    READY = "ready"

    @property
    def order(self) -> int:
        return list(Stage).index(self)


FILES = "@launch-files@"
"""In ``Launch.argv``: the folder that the placement has written ``Launch.files`` to."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)+")


@dataclass(frozen=True, slots=True)
class Launch:
    """How one instance is started.

    ``env`` is added to a clean environment (PATH, HOME, LANG and the like are kept).
    ``pythonpath`` is put in front of the engine's PYTHONPATH (the probe lives there).
    ``files``: plain name → text, written to a folder of the instance alone before it starts;
    ``f"--config={FILES}/engine.yaml"`` refers to one. They stay on disk: no secrets.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    pythonpath: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.files:
            if _FILE_NAME.fullmatch(name) is None:
                raise ValueError(f"found the file name {name!r}, expected one like engine.yaml")

    def argv_with(self, folder: str) -> tuple[str, ...]:
        """``argv`` for an engine that finds its files in ``folder``."""
        if not self.files:
            return self.argv
        return tuple(word.replace(FILES, folder) for word in self.argv)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What log lines have said so far. None and empty mean: not said (yet)."""

    stages: tuple[Stage, ...] = ()  # stages seen complete, in order of appearance
    stage_seconds: Mapping[str, float] = field(default_factory=dict)  # load, compile, capture, init
    graph_bytes: int | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None  # at max_model_len tokens a request
    out_of_memory: tuple[str, ...] = ()  # the lines that said so
    fatal: tuple[str, ...] = ()  # lines that say why the engine ended
    warnings: tuple[str, ...] = ()  # downgrades: mode, grid, backend
    resolved: Mapping[str, str] = field(default_factory=dict)
    """What the engine made of what it was asked, by the names of attestation (graph_mode,
    graph_sizes, attention_backend)."""
    resolved_by: Mapping[str, str] = field(default_factory=dict)
    """Name → the log's words for it."""
    late_work: tuple[str, ...] = ()
    """What was compiled or captured once the engine had initialised, in words, oldest first: no
    fault before an instance is ready, since warming up is what brings it about."""


class EngineFault(StrEnum):
    """Events that a placement or a log reports by itself, within a second."""

    EXIT = "exit"
    OOM = "oom"
    NO_PROGRESS = "no_progress"


class Engine(Protocol):
    """An engine adapter."""

    name: str
    simulated: bool  # shown wherever the engine's name is
    tells_token_ids: bool
    """Completions take ``return_tokens_as_token_ids``, and tokens are then ``token_id:123`` in
    their log-probabilities. Others may refuse the field."""

    def check(self, spec: RuntimeSpec) -> Sequence[str]:
        """Faults of the spec itself: unsupported version, grid outside the engine's limits…"""

    def launch(self, spec: RuntimeSpec, *, host: str, port: int) -> Launch:
        """argv and environment for one instance. The listening address is host:port."""

    def eager(self, spec: RuntimeSpec) -> RuntimeSpec:
        """The same runtime with graphs off: an artifact of its own. It has no eager form itself."""

    def resolved_grid(self, spec: RuntimeSpec) -> tuple[int, ...]:
        """The sizes the engine is expected to capture for ``spec`` (its default where None)."""

    def metrics(self, version: str) -> Mapping[Signal, MetricRef]:
        """Names by version. A signal that is absent cannot be had: unknown, never zero."""

    def read_log(self, lines: Iterable[str], version: str) -> LogFacts:
        """Facts from the whole log so far; unknown lines are ignored."""

    def health_path(self) -> str:
        """Answers 200 when the server listens; says nothing about progress."""

    def metrics_path(self) -> str:
        """Where its metrics are, in Prometheus's text format."""

    def model_name(self, spec: RuntimeSpec) -> str:
        """The ``model`` field of requests to this engine."""

    def variant(self, spec: RuntimeSpec) -> str:
        """What beside name and version decides what its graphs cost, in words; else empty."""


def runs_as(adapter: Engine, spec: RuntimeSpec) -> str:
    """An engine as a calibration names it: "vllm 0.25.1 (model runner V1)"."""
    variant = adapter.variant(spec)
    return f"{adapter.name} {spec.engine.version}" + (f" ({variant})" if variant else "")
