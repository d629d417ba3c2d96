"""The calibration file: what one engine on one machine was measured to need.

A JSON document::

    {"format": "canaryctl/grid-calibration/v1",
     "machine": "…", "engine": "…", "model": "…", "method": "…", "assumed": "…",
     "noise_ms": {"FULL": 0.4, "PIECEWISE": 1.9, "NONE": 4.5, "EAGER": 4.0},
     "step_ms": {"FULL": {"1": 1.5, …}, "PIECEWISE": {…}, "NONE": {…}, "EAGER": {…}},
     "prefill_us_per_token": 3.0,
     "graphs": {"FULL": {"fixed_mib": …, "per_graph_mib": …, "per_token_mib": …,
                         "fixed_s": …, "per_graph_s": …, "per_token_s": …},
                "PIECEWISE": {…}},
     "pool": {"fixed_mib": …, "per_largest_token_mib": …, "fixed_s": …, "most_tokens": 256},
     "graphs_error": 0.01,
     "kv_bytes_per_token": 114688, "kv_cache_tokens": 506256}

``step_ms`` is by padded size where a graph was replayed; ``NONE`` is compiled code without a
graph, which is what a step beyond the grid runs, and ``EAGER`` neither compiled nor captured.
A mode costs ``fixed`` once it has a graph, and each of its graphs ``per_graph`` and
``per_token`` of its size. Graphs of all modes share one memory ``pool``: it costs ``fixed_mib``
once there is any, and ``per_largest_token_mib`` of the largest size, whose intermediate results
smaller graphs use again, up to ``most_tokens``, the largest that was measured (null: of any); a
larger one is taken to add no more. ``fixed_s`` is the time that capturing takes beside the graphs.
A file without it has none of them.
``graphs_error``: how far the fit was from the runs it was made of. ``noise_ms``: by mode, how far
one engine's mean step is from that of others, one standard deviation; a mode that one engine alone
ran is missing, and a single number is of FULL graphs alone.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError

FORMAT: Final = "canaryctl/grid-calibration/v1"
STEP_MODES: Final = ("FULL", "PIECEWISE", "NONE", "EAGER")
GRAPH_KINDS: Final = ("FULL", "PIECEWISE")
_TEXTS: Final = ("machine", "engine", "model", "method", "assumed")


@dataclass(frozen=True, slots=True)
class GraphCost:
    """Of the graphs of one mode: MiB of GPU memory, and seconds to capture them."""

    fixed_mib: float
    per_graph_mib: float
    per_token_mib: float
    fixed_s: float
    per_graph_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True)
class PoolCost:
    """Of what graphs share: MiB of their memory, and seconds before and after their captures."""

    fixed_mib: float = 0.0
    per_largest_token_mib: float = 0.0
    fixed_s: float = 0.0
    most_tokens: int | None = None


NO_POOL: Final = PoolCost()


@dataclass(frozen=True, slots=True)
class Calibration:
    """``step_ms``: mode → size → milliseconds. ``noise_ms``: mode → one standard deviation.
    ``kv_cache_tokens``: without any graph."""

    machine: str
    engine: str
    model: str
    method: str
    assumed: str
    noise_ms: Mapping[str, float]
    step_ms: Mapping[str, Mapping[int, float]]
    prefill_us_per_token: float
    graphs: Mapping[str, GraphCost]
    graphs_error: float
    kv_bytes_per_token: int
    kv_cache_tokens: int
    pool: PoolCost = NO_POOL

    @property
    def whose(self) -> str:
        """What its figures are of; shown beside every one of them."""
        return f"{self.engine}, {self.model}, on {self.machine}"

    def to_json(self) -> str:
        document = asdict(self)
        document["step_ms"] = {
            mode: {str(size): value for size, value in sorted(points.items())}
            for mode, points in self.step_ms.items()
        }
        return json.dumps({"format": FORMAT, **document}, indent=1) + "\n"


def load_calibration(path: Path) -> Calibration:
    """InputError names the file and what is wrong in it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return parse_calibration(text, str(path))


@cache
def packaged() -> Calibration:
    """Of Qwen3-0.6B's shape on H200s, as its ``whose`` says: for a first look, not for another
    model, GPU or model runner (docs/grid.md)."""
    name = "h200_qwen3_0.6b.json"
    text = files("canaryctl.runtimes.grid").joinpath(name).read_text("utf-8")
    return parse_calibration(text, name)


def parse_calibration(text: str, name: str) -> Calibration:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}") from error
    reader = _Reader(name)
    found = reader.mapping(document, "the document")
    if found.get("format") != FORMAT:
        raise InputError(f"{name}: format is {found.get('format')!r}, expected {FORMAT!r}")
    allowed = {"format", *Calibration.__dataclass_fields__}
    reader.same_names("the document", {"pool": {}, **found}, allowed)
    for field in _TEXTS:
        if not isinstance(found[field], str):
            raise InputError(f"{name}: {field} is {found[field]!r}, expected text")
    steps = reader.mapping(found["step_ms"], "step_ms")
    reader.same_names("step_ms", steps, set(STEP_MODES))
    graphs = reader.mapping(found["graphs"], "graphs")
    reader.same_names("graphs", graphs, set(GRAPH_KINDS))
    return Calibration(
        **{field: found[field] for field in _TEXTS},
        noise_ms=reader.noise(found["noise_ms"]),
        step_ms={mode: reader.points(steps[mode], f"step_ms.{mode}") for mode in STEP_MODES},
        prefill_us_per_token=reader.number(found["prefill_us_per_token"], "prefill_us_per_token"),
        graphs={kind: reader.cost(graphs[kind], f"graphs.{kind}") for kind in GRAPH_KINDS},
        graphs_error=reader.number(found["graphs_error"], "graphs_error"),
        kv_bytes_per_token=reader.whole(found["kv_bytes_per_token"], "kv_bytes_per_token"),
        kv_cache_tokens=reader.whole(found["kv_cache_tokens"], "kv_cache_tokens"),
        pool=reader.pool(found["pool"]) if "pool" in found else NO_POOL,
    )


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name

    def mapping(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InputError(f"{self._name}: {where} is {value!r:.80}, expected an object")
        return value

    def same_names(self, where: str, found: Mapping[str, Any], expected: set[str]) -> None:
        for what, names in (
            ("lacks", expected - found.keys()),
            ("has the unknown", found.keys() - expected),
        ):
            if names:
                raise InputError(f"{self._name}: {where} {what} {', '.join(sorted(names))}")

    def number(self, value: Any, where: str) -> float:
        sound = isinstance(value, int | float) and not isinstance(value, bool)
        if not (sound and 0 <= value < 1e15):
            raise InputError(f"{self._name}: {where} is {value!r}, expected a number from 0")
        return float(value)

    def whole(self, value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{self._name}: {where} is {value!r}, expected a whole number from 1")
        return value

    def points(self, value: Any, where: str) -> dict[int, float]:
        found = self.mapping(value, where)
        if not found:
            raise InputError(f"{self._name}: {where} is empty, expected a point at least")
        for size in found:
            if not (size.isascii() and size.isdigit() and int(size) >= 1):
                raise InputError(f"{self._name}: {where} has size {size!r}, expected one from 1")
        return {int(size): self.number(ms, f"{where}.{size}") for size, ms in found.items()}

    def cost(self, value: Any, where: str) -> GraphCost:
        return GraphCost(**self.numbers(value, where, GraphCost.__dataclass_fields__))

    def noise(self, value: Any) -> dict[str, float]:
        if not isinstance(value, dict):
            return {"FULL": self.number(value, "noise_ms")}
        self.same_names("noise_ms", {**dict.fromkeys(STEP_MODES), **value}, set(STEP_MODES))
        return {mode: self.number(ms, f"noise_ms.{mode}") for mode, ms in value.items()}

    def pool(self, value: Any) -> PoolCost:
        # Files of before have neither.
        found = {"fixed_s": 0.0, "most_tokens": None, **self.mapping(value, "pool")}
        most = found.pop("most_tokens")
        names = PoolCost.__dataclass_fields__.keys() - {"most_tokens"}
        tokens = None if most is None else self.whole(most, "pool.most_tokens")
        return PoolCost(**self.numbers(found, "pool", names), most_tokens=tokens)

    def numbers(self, value: Any, where: str, names: Iterable[str]) -> dict[str, float]:
        found = self.mapping(value, where)
        self.same_names(where, found, set(names))
        return {key: self.number(v, f"{where}.{key}") for key, v in found.items()}
