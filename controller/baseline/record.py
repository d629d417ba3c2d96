"""The record of a baseline run: what is stored with an artifact, and when two may be compared.

Records are JSON documents under ``STATE_DIR/baselines/DIGEST/``, one for each run, written whole
and never changed (adr/0010).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.wholefile import digest_name, read_document, replace_file
from canaryctl.controller.baseline.figures import DecodeSteps, Graphs, Latency, Run
from canaryctl.controller.baseline.slo import Goodput, Slo

FORMAT: Final = "canaryctl/baseline/v1"
FOLDER: Final = "baselines"
CONDITIONS: Final = (
    *("model", "model revision", "engine", "CUDA", "driver", "GPU"),
    *("tensor parallel", "pipeline parallel", "expert parallel", "traffic"),
)
"""What must agree for the figures of two runs to be compared. A record of before one was kept does
not know it."""


@dataclass(frozen=True, slots=True)
class Start:
    """What one engine's start showed; None and absent: it did not say.

    ``memory_bytes``: by kind, as the probe names them (weights, graphs, kv_cache,
    gpu_used_before_capture, gpu_used_after_capture, gpu_total). ``stage_s``: seconds by stage.
    ``reached``: stage of readiness → ISO time. ``warmed``: "kind bucket" → runs done.
    """

    captured_sizes: tuple[int, ...] | None
    stage_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    kv_cache_tokens: int | None
    max_concurrency: float | None  # the least of max_num_seqs and KV tokens / max_model_len
    reached: Mapping[str, str]
    warmed: Mapping[str, int]
    beside_others: bool = False  # others were up on its GPU: what that has in use is theirs too

    @property
    def graph_bytes(self) -> float | None:
        return self.memory_bytes.get("graphs")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage. ``fault``: why it has no runs, or fewer than asked for."""

    name: str
    digest: str
    mode: str
    requested_sizes: tuple[int, ...] | None  # None: the engine's default
    conditions: Mapping[str, str | None]
    start: Start | None = None
    runs: tuple[Run, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """One baseline run of an artifact. ``interleaved``: whether all engines were up at once and
    loaded in turns; otherwise each stage's repeats follow each other. ``slo``: of the artifact,
    empty where it has none; None: an earlier version did not ask."""

    artifact: str  # name@version
    digest: str
    service: str
    begun_at: str  # ISO 8601
    traffic: str
    repeats: int
    interleaved: bool
    stages: tuple[StageRecord, ...] = field(default=())
    slo: Slo | None = None

    def stage(self, name: str) -> StageRecord | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def of_artifact(self) -> StageRecord | None:
        """The stage that ran the artifact itself."""
        return next((stage for stage in self.stages if stage.digest == self.digest), None)

    @property
    def complete(self) -> bool:
        return bool(self.stages) and all(
            stage.fault is None and len(stage.runs) == self.repeats for stage in self.stages
        )

    def as_document(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``differing``: condition → the two values. ``unknown``: conditions that one does not know,
    which forbids a comparison as well."""

    differing: Mapping[str, tuple[str, str]]
    unknown: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        return not self.differing and not self.unknown

    @property
    def why_not(self) -> str:
        parts = [f"{name}: {a} and {b}" for name, (a, b) in self.differing.items()]
        parts += [f"{name} is not known of both" for name in self.unknown]
        return "; ".join(parts)


def compare_conditions(a: Mapping[str, str | None], b: Mapping[str, str | None]) -> Comparison:
    """Whether figures measured under ``a`` and ``b`` may stand side by side."""
    differing, unknown = {}, []
    for name in CONDITIONS:
        here, there = a.get(name), b.get(name)
        if here is None or there is None:
            unknown.append(name)
        elif here != there:
            differing[name] = (here, there)
    return Comparison(differing, tuple(unknown))


def folder_of(state_dir: Path, digest: str) -> Path:
    return state_dir / FOLDER / digest_name(digest)


def store_record(record: BaselineRecord, state_dir: Path) -> Path:
    """Write it whole; the file's name is when the run began."""
    folder = folder_of(state_dir, record.digest)
    folder.mkdir(parents=True, exist_ok=True)
    begun = datetime.fromisoformat(record.begun_at)
    path = folder / f"{begun:%Y%m%dT%H%M%S.%fZ}.json"
    replace_file(path, json.dumps(record.as_document(), indent=1, allow_nan=False) + "\n")
    return path


def latest_record(state_dir: Path, digest: str) -> BaselineRecord | None:
    """The last run of the artifact; None where there was none."""
    found = sorted(folder_of(state_dir, digest).glob("*.json"))
    return load_record(found[-1]) if found else None


def load_record(path: Path) -> BaselineRecord:
    """InputError names the file and what is wrong."""
    found = read_document(path, FORMAT, "baseline run")
    try:
        return BaselineRecord(
            **{name: found[name] for name in _PLAIN},
            slo=found.get("slo"),
            stages=tuple(_stage(stage, found["interleaved"]) for stage in found["stages"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a whole baseline run: {error!r}") from error


_PLAIN: Final = (
    *("artifact", "digest", "service", "begun_at", "traffic", "repeats", "interleaved"),
)


def _stage(found: Mapping[str, Any], interleaved: bool) -> StageRecord:
    """A record of before it was told shared its GPUs where its engines were up together."""
    start = found["start"] and {"beside_others": interleaved, **found["start"]}
    return StageRecord(
        **{
            **found,
            "requested_sizes": _sizes(found["requested_sizes"]),
            "start": start
            and Start(**{**start, "captured_sizes": _sizes(start["captured_sizes"])}),
            "runs": tuple(_run(run) for run in found["runs"]),
        }
    )


def _run(found: Mapping[str, Any]) -> Run:
    latency = {name: one and Latency(**one) for name, one in found["latency"].items()}
    graphs = found["graphs"] and Graphs(**found["graphs"])
    goodput = found.get("goodput") and Goodput(**found["goodput"])
    return Run(
        **{
            **found,
            "latency": latency,
            "graphs": graphs,
            "unknown": tuple(found["unknown"]),
            "goodput": goodput,
            "decode_steps": tuple(DecodeSteps(**one) for one in found.get("decode_steps", ())),
        }
    )


def _sizes(found: Any) -> tuple[int, ...] | None:
    return None if found is None else tuple(int(size) for size in found)
