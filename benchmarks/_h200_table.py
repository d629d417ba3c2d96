"""The results as the page docs/benchmarks/h200.md. Pure: the results in, Markdown out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks._h200_client import QUANTILES, over_repeats, spread

MIB = 2**20
STAGES = ("loaded", "compiled", "captured", "warmed", "ready")
TITLES = {
    "eager": "eager: graphs off",
    "graphs": "graphs: vLLM's default grid",
    "nine": "nine: sizes up to 48",
    "oom-capture": "oom-capture: no room to capture in",
}
RELEASES = ("first", "graphs", "nine", "nine-2", "nine-3", "oom", "measured")

Results = Mapping[str, Any]


TITLE = "# One H200: eager, graphs, and two bad runtimes"
COMMAND = """Command, on a host with the GPU and that engine (`PYTHONPATH` begins with the engine's
packages, and names canaryctl's too where it is not installed):

```sh
python -m benchmarks.h200 --out out
```

Numbers with a range are the median and (least–most) of repeats. Hits, fallback and padding by
captured size, what is attested, parity and the probe's own cost are in
[h200_graphs.md](h200_graphs.md), eager, default and planned grids under one load in
[h200_baseline.md](h200_baseline.md)."""
STARTING = """## Starting

Seconds since the process started, as the controller saw each stage complete, and what the
engine's log says of its own stages. The first engine with graphs compiles; later ones find it
in vLLM's cache."""
RELEASES_READ = """## Releases

Decision: from the step in force to the verdict. Weight 0: from the verdict to Envoy's own report
that the canary gets nothing. Restored: from the verdict to the controller's record of it."""
LATENCY_READ = """Runtimes that are compared were up at the same time on
the same GPU and measured in turns; the other one was idle. TPOT: per request, (last − first
token) / (tokens − 1). ITL: between events as they reached the client; events that came together
are 0 apart. Quantiles by nearest rank within a repeat."""


def page(results: Results) -> str:
    parts = [
        TITLE,
        _machine(results["machine"], results["settings"]),
        COMMAND,
        _method(results["settings"]),
        _latency(results["cells"]),
        STARTING,
        _starts(results),
        RELEASES_READ,
        _releases(results),
        _repeated(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _machine(machine: Results, settings: Results) -> str:
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    limits = settings["runtime"]["limits"]
    return (
        f"Machine: {gpus}{driver}, {machine['cpus']} CPUs, Python {machine['python']}. "
        f"Engine: {machine['engine']}, random weights in the shape of Qwen3-0.6B,\n"
        f"max_num_seqs {limits['max_num_seqs']}, max_model_len {limits['max_model_len']}, "
        f"{settings['fraction']:.0%} of the GPU's memory for each engine."
    )


def _method(settings: Results) -> str:
    return (
        "## Latency by open requests\n\n"
        f"Closed loop of streaming clients straight at the engine, {settings['prompt_tokens']} "
        f"tokens in and {settings['output_tokens']} out,\nat least {settings['repeats']} repeats "
        f"of {settings['cell_s']:g} s. {LATENCY_READ}"
    )


def _latency(cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    if not cells:
        return "Not measured."
    header = ["runtime", "open", "requests", "tokens/s"]
    header += [f"{name.upper()} p{q} ms" for name in ("ttft", "tpot", "itl") for q in QUANTILES]
    rows = []
    for key in sorted(cells, key=lambda key: (key.split("/")[0], int(key.split("/")[1]))):
        name, level = key.split("/")
        folded = over_repeats([dict(cell) for cell in cells[key]])
        failed = f" ({folded['failed']} failed)" if folded["failed"] else ""
        rows.append(
            [name, level, f"{folded['requests']}{failed}", _range(folded["tokens_per_s"], 1, 0)]
            + [
                _range(folded[f"{metric}_p{q}_s"], 1000, 1)
                for metric in ("ttft", "tpot", "itl")
                for q in QUANTILES
            ]
        )
    return _table(header, rows)


def _starts(results: Results) -> str:
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for release in _all_releases(results):
        for instance in release["instances"]:
            seen.setdefault(instance["artifact"], []).append(instance)
    header = ["runtime", "starts", *STAGES, "torch.compile s", "capture s", "graphs captured"]
    header += ["graph memory MiB", "weights MiB", "KV tokens", "max. concurrency"]
    rows = []
    for name, instances in seen.items():
        facts = [instance["facts"] for instance in instances]
        said = [found.get("stage_seconds") or {} for found in facts]
        grids = sorted({len(f["captured_sizes"]) for f in facts if f.get("captured_sizes")})
        rows.append(
            [TITLES.get(name, name), str(len(instances))]
            + [
                _range(spread(i["stages_s"].get(stage) for i in instances), 1, 1)
                for stage in STAGES
            ]
            + [_range(spread(s.get(stage) for s in said), 1, 1) for stage in ("compile", "capture")]
            + [", ".join(f"{count} sizes" for count in grids) or "–"]
            + [
                _range(spread(f.get("graph_bytes") for f in facts), 1 / MIB, 0),
                _range(spread(f.get("weights_bytes") for f in facts), 1 / MIB, 0),
                _range(spread(f.get("kv_cache_tokens") for f in facts), 1, 0),
                _range(spread(f.get("max_concurrency") for f in facts), 1, 1),
            ]
        )
    return _table(header, rows) if rows else "No engine was started."


def _releases(results: Results) -> str:
    header = ["release", "outcome", "warm after s", "decision s", "weight 0 s", "restored s", "why"]
    rows = []
    for release in _all_releases(results):
        took = release["took"]
        rows.append(
            [
                release["artifact"],
                release["outcome"].replace("_", " "),
                _number(took["start_s"], 0),
                "–"
                if str(release["reason"]).startswith("abort")
                else _number(took["decision_s"], 1),
                _number(took["weight_zero_s"], 3),
                _number(took["restored_s"], 2),
                str(release["reason"]).replace("|", "/"),
            ]
        )
    not_run = [
        f"{name}: {step.get('not_run') or step.get('error')}"
        for name, step in results["steps"].items()
        if step.get("not_run") or step.get("error")
    ]
    notes = ["Not run: " + "; ".join(not_run) + "."] if not_run else []
    return "\n\n".join([_table(header, rows) if rows else "None.", *notes])


def _repeated(results: Results) -> str:
    """The grid that ends below the load, over its repeats."""
    took = [
        results["steps"][name]["release"]["took"]
        for name in RELEASES
        if name.startswith("nine") and "release" in results["steps"].get(name, {})
    ]
    if not took:
        return ""
    said = ", ".join(
        f"{words} {_range(spread(one[key] for one in took), 1, digits)} s"
        for words, key, digits in (
            ("decision", "decision_s", 1),
            ("weight 0", "weight_zero_s", 3),
            ("restored", "restored_s", 2),
        )
    )
    return f"The nine sizes under 128 open requests, {len(took)} releases: {said}."


def _all_releases(results: Results) -> list[Mapping[str, Any]]:
    found = []
    for name in RELEASES:
        step = results["steps"].get(name, {})
        tries = [attempt["release"] for attempt in step.get("tries", [])]
        found += [step["release"]] if "release" in step else tries
    return found


def _range(found: Mapping[str, Any] | None, scale: float, digits: int) -> str:
    if found is None:
        return "–"
    middle, least, most = (found[key] * scale for key in ("median", "least", "most"))
    if found["n"] == 1 or f"{least:.{digits}f}" == f"{most:.{digits}f}":
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
