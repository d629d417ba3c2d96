"""How plans are shown: a table beside sentences, or one document."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.output import Table

if TYPE_CHECKING:
    from canaryctl.runtimes.grid.calibration import Calibration
    from canaryctl.runtimes.grid.distribution import Traffic
    from canaryctl.runtimes.grid.figures import Figures
    from canaryctl.runtimes.grid.planner import Plan

_FRONT_ROWS = 8


def print_plan(plan: "Plan", traffic: "Traffic", calibration: "Calibration") -> None:
    click.echo(f"traffic: {traffic.source}")
    for kind, distribution in traffic.kinds.items():
        if distribution.sizes:
            p50, p95, most = (distribution.quantile(share) for share in (0.5, 0.95, 1.0))
            click.echo(
                f"  {kind.value}: {distribution.total} steps, p50 {p50}, p95 {p95}, most {most}"
            )
    click.echo(figures_by(calibration))
    for note in (*traffic.notes, *plan.notes):
        click.echo(f"note: {note}")
    click.echo()
    print_figures({"planned": plan.grid, **plan.compared})
    click.echo()
    click.echo(f"planned: {_sizes(plan.grid.sizes)}")
    for name, figures in plan.compared.items():
        if figures.sizes:
            click.echo(f"{name}: {_sizes(figures.sizes)}")
    click.echo()
    click.echo(plan.verdict)
    click.echo(
        "no grid within the limits is better"
        if not plan.gap
        else f"another grid could be better by {plan.gap:.3%} at most"
    )
    for marginal in plan.marginals:
        click.echo(f"{'first' if marginal.core else 'then '}  {marginal.words}")
    click.echo()
    click.echo("the best for their memory:")
    step = max(1, len(plan.front) // _FRONT_ROWS)
    print_figures({f"{len(f.sizes)} sizes": f for f in plan.front[::step]})


def print_figures(grids: Mapping[str, "Figures"]) -> None:
    table = Table(
        "grid", "sizes", "graphs", "coverage", "decode hits", "mixed hits", "padding", "MiB",
        "capture s", "step ms", "p99 ms", "decode p99 ms", "KV tokens", "concurrency",
    )  # fmt: skip
    for name, figures in grids.items():
        table.add(
            name,
            len(figures.sizes),
            figures.graphs,
            f"{figures.coverage:.2%}",
            _share(figures.decode_hits),
            _share(figures.mixed_hits),
            f"{figures.padding:.3f}",
            f"{figures.graph_mib:.1f}",
            f"{figures.capture_s:.2f}",
            f"{figures.mean_s * 1000:.3f}",
            f"{figures.p99_s * 1000:.2f}",
            "–" if figures.decode_p99_s is None else f"{figures.decode_p99_s * 1000:.2f}",
            figures.kv_tokens,
            f"{figures.concurrency:.1f}",
        )
    table.print()


def figures_by(calibration: "Calibration") -> str:
    return f"figures by the calibration of {calibration.whose}; {noise(calibration)}"


def noise(calibration: "Calibration") -> str:
    if not calibration.noise_ms:
        return "how far another engine's steps are off is not stated"
    return f"another engine's steps are off by {calibration.noise_ms:.2g} ms (standard deviation)"


def calibration_document(calibration: "Calibration") -> dict[str, Any]:
    return {"calibration": calibration.whose, "step_noise_ms": calibration.noise_ms}


def plan_document(plan: "Plan", traffic: "Traffic", calibration: "Calibration") -> dict[str, Any]:
    return {
        "source": traffic.source,
        **calibration_document(calibration),
        "notes": [*traffic.notes, *plan.notes],
        "traffic": kinds_document(traffic.kinds),
        "by_hour": {str(hour): kinds_document(kinds) for hour, kinds in traffic.by_hour.items()},
        "planned": figures_document(plan.grid),
        "gap": plan.gap,
        "worth_it": plan.worth_it,
        "verdict": plan.verdict,
        "compared": {name: figures_document(f) for name, f in plan.compared.items()},
        "marginals": [{**asdict(m), "words": m.words} for m in plan.marginals],
        "front": [figures_document(figures) for figures in plan.front],
    }


def kinds_document(kinds: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        kind.value: {str(size): count for size, count in distribution.items()}
        for kind, distribution in kinds.items()
    }


def figures_document(figures: "Figures") -> dict[str, Any]:
    return {**asdict(figures), "graphs": figures.graphs}


def _sizes(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) or "none"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"
