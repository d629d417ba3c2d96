"""What the steps of an engine were between two scrapes, by captured size, as tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks._h200_client import spread
from canaryctl.common.metrics import Signal
from canaryctl.controller.baseline.figures import decode_steps_of
from canaryctl.gates.deltas import Skipped, delta
from canaryctl.gates.samples import HistogramSet, Missing, Scrape, Series, Value


class UnsaidError(RuntimeError):
    """What an engine does not say, with the reason."""


MODES = ("FULL", "PIECEWISE", "NONE")


def steps_between(before: Scrape, after: Scrape) -> dict[str, Any]:
    """``buckets``: a row for each (mode, bucket); ``decodes``: of steps of decodes alone, as a
    baseline run has them; ``total``: ratios over all. JSON types.

    Raises UnsaidError where a scrape cannot say.
    """
    found = delta(before, after)
    if isinstance(found, Skipped):
        raise UnsaidError(f"no difference between the scrapes: {found.reason}")
    steps, actual, padded = (
        _series(found.values[signal])
        for signal in (Signal.STEPS, Signal.TOKENS_ACTUAL, Signal.TOKENS_PADDED)
    )
    times = _step_times(found.values[Signal.STEP_TIME])
    buckets: dict[tuple[str, int], dict[str, Any]] = {}
    for labels, count in steps.items():
        said = dict(labels)
        key = (said["mode"], int(said["bucket"]))
        row = buckets.setdefault(key, _row(*key, times.get(key)))
        row["steps"] += count
        row[{"true": "pure", "false": "mixed"}.get(said["pure_decode"], "unknown")] += count
        row["actual"] += actual[labels]
        row["padded"] += padded[labels]
    return {
        "buckets": [buckets[k] for k in sorted(buckets, key=_order) if buckets[k]["steps"]],
        "decodes": [asdict(one) for one in decode_steps_of(found.values)],
        "total": _total(steps, actual, padded),
    }


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return MODES.index(key[0]), key[1]


def _row(mode: str, bucket: int, step_s: float | None) -> dict[str, Any]:
    names = ("steps", "pure", "mixed", "unknown", "actual", "padded")
    return {"mode": mode, "bucket": bucket, "step_s": step_s, **dict.fromkeys(names, 0.0)}


def _total(
    steps: Mapping[Any, float], actual: Mapping[Any, float], padded: Mapping[Any, float]
) -> dict[str, Any]:
    """Shares of pure-decode steps: ``hit`` (any graph), ``full``, ``piecewise``, ``fallback``
    (eager within the grid), ``beyond`` (eager, and no graph was captured for it)."""

    def pure(mode: str, *, beyond: bool | None = None) -> float:
        return sum(
            count
            for labels, count in steps.items()
            if (said := dict(labels))["pure_decode"] == "true"
            and said["mode"] == mode
            and (beyond is None or (said.get("reason") == "beyond_grid") is beyond)
        )

    full, piecewise = pure("FULL"), pure("PIECEWISE")
    fallback, beyond = pure("NONE", beyond=False), pure("NONE", beyond=True)
    decodes = full + piecewise + fallback + beyond
    unknown = sum(c for labels, c in steps.items() if dict(labels)["pure_decode"] == "unknown")

    def share(count: float) -> float | None:
        return count / decodes if decodes else None

    return {
        "steps": sum(steps.values()),
        "pure": decodes,
        "unknown": unknown,
        "hit": share(full + piecewise),
        "full": share(full),
        "piecewise": share(piecewise),
        "fallback": share(fallback),
        "beyond": share(beyond),
        "padding": sum(padded.values()) / sum(actual.values()) - 1 if actual else None,
    }


def _series(value: Value) -> Mapping[Any, float]:
    if isinstance(value, Series):
        return value.values
    raise UnsaidError(f"the engine does not say: {_why(value)}")


def _step_times(value: Value) -> dict[tuple[str, int], float]:
    """Median step time by mode and bucket: the upper edge that half of them stay under."""
    if isinstance(value, Missing):
        return {}
    if not isinstance(value, HistogramSet):
        raise TypeError(f"expected a set of histograms of step times, found {value!r}")
    found = {}
    for labels, histogram in value.histograms.items():
        said = dict(labels)
        if histogram.count:
            median = next(e for e, count in histogram.buckets if 2 * count >= histogram.count)
            found[said["mode"], int(said["bucket"])] = median
    return found


def _why(value: Value) -> str:
    return value.reason if isinstance(value, Missing) else type(value).__name__


def summary_table(engines: Mapping[str, Mapping[str, Any]]) -> str:
    header = ["runtime", "steps", "pure decode", "hit", "FULL", "PIECEWISE", "fallback"]
    header += ["beyond grid", "padding", "cannot tell"]
    rows = []
    for name, found in engines.items():
        total = found["steps"]["total"]
        shares = (total[k] for k in ("hit", "full", "piecewise", "fallback", "beyond", "padding"))
        told = 1 - total["unknown"] / total["steps"] if total["steps"] else None
        rows.append(
            [name, f"{total['steps']:.0f}", f"{total['pure']:.0f}"]
            + [percent(share) for share in shares]
            + [percent(None if told is None else 1 - told)]
        )
    return table(header, rows)


def bucket_table(found: Mapping[str, Any]) -> str:
    header = ["mode", "bucket", "steps", "pure decode", "mixed", "tokens", "computed", "padding"]
    header += ["step time p50 ms"]
    rows = []
    for row in found["steps"]["buckets"]:
        padding = row["padded"] / row["actual"] - 1 if row["actual"] else None
        step = "–" if row["step_s"] is None else f"{row['step_s'] * 1000:.2f}"
        rows.append(
            [row["mode"], "eager" if row["mode"] == "NONE" else str(row["bucket"])]
            + [f"{row[name]:.0f}" for name in ("steps", "pure", "mixed", "actual", "padded")]
            + [percent(padding), step]
        )
    return table(header, rows)


def overhead_table(cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """``cells``: "level" → pairs of TPOT p50 in seconds, with and without the probe."""
    header = ["open", "pairs", "with ms", "without ms", "difference µs"]
    rows = []
    for level, pairs in cells.items():
        kept = [p for p in pairs if p["with"] is not None and p["without"] is not None]
        rows.append(
            [level, str(len(kept))]
            + [ranged((p[side] for p in kept), 1e3, 3) for side in ("with", "without")]
            + [ranged((p["with"] - p["without"] for p in kept), 1e6, 0)]
        )
    return table(header, rows)


def ranged(values: Iterable[float], scale: float, digits: int) -> str:
    found = spread(values)
    if found is None:
        return "–"
    middle, least, most = (found[k] * scale for k in ("median", "least", "most"))
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
