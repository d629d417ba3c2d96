"""How plans are shown: a table beside sentences, or one document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.output import Table

if TYPE_CHECKING:
    from canaryctl.controller.gridsetup import ArtifactGrid
    from canaryctl.runtimes.grid.calibration import Calibration
    from canaryctl.runtimes.grid.distribution import Traffic
    from canaryctl.runtimes.grid.figures import Figures
    from canaryctl.runtimes.grid.planner import Judged, Plan

_FRONT_ROWS = 8


def print_plan(
    plan: "Plan", traffic: "Traffic", calibration: "Calibration", notes: Sequence[str]
) -> None:
    _print_traffic(traffic, calibration, (*traffic.notes, *notes, *plan.notes))
    print_figures([("planned", plan.grid), *plan.compared.items()])
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
    _print_marginals(plan)
    _print_front(plan, "")


def print_comparison(
    grids: Sequence["ArtifactGrid"], traffic: "Traffic", calibration: "Calibration"
) -> None:
    """One front where the artifacts have the same rules and shapes, else one of each."""
    _print_traffic(traffic, calibration, _comparison_notes(grids, traffic))
    print_figures([(one.name, one.judged.grid) for one in grids])
    for one in grids:
        click.echo()
        click.echo(f"{one.name}: {_sizes(one.judged.grid.sizes)}")
        _print_marginals(one.judged)
    alike = len({one.judged.front for one in grids}) == 1
    for one in grids[:1] if alike else grids:
        if one.judged.front:
            _print_front(one.judged, "" if alike else f", under the limits of {one.name}")


def _comparison_notes(grids: Sequence["ArtifactGrid"], traffic: "Traffic") -> list[str]:
    """Each once."""
    return list(dict.fromkeys([*traffic.notes, *(note for one in grids for note in one.notes)]))


def _print_traffic(traffic: "Traffic", calibration: "Calibration", notes: Sequence[str]) -> None:
    click.echo(f"traffic: {traffic.source}")
    for kind, distribution in traffic.kinds.items():
        if distribution.sizes:
            p50, p95, most = (distribution.quantile(share) for share in (0.5, 0.95, 1.0))
            click.echo(
                f"  {kind.value}: {distribution.total} steps, p50 {p50}, p95 {p95}, most {most}"
            )
    click.echo(figures_by(calibration))
    for note in notes:
        click.echo(f"note: {note}")
    click.echo()


def _print_marginals(judged: "Judged") -> None:
    for marginal in judged.marginals:
        click.echo(f"{'first' if marginal.core else 'then '}  {marginal.words}")


def _print_front(judged: "Judged", whose: str) -> None:
    click.echo()
    click.echo(f"the best for their memory{whose}:")
    step = max(1, len(judged.front) // _FRONT_ROWS)
    print_figures([(f"{len(f.sizes)} sizes", f) for f in judged.front[::step]])


def print_figures(grids: Iterable[tuple[str, "Figures"]]) -> None:
    table = Table(
        "grid", "sizes", "graphs", "coverage", "decode hits", "mixed hits", "padding", "MiB",
        "capture s", "step ms", "p99 ms", "decode p99 ms", "KV tokens", "concurrency",
    )  # fmt: skip
    for name, figures in grids:
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
    said = ", ".join(f"{mode} {ms:.2g} ms" for mode, ms in calibration.noise_ms.items() if ms)
    if not said:
        return "how far another engine's steps are off is not stated"
    return f"another engine's steps are off by {said} (one standard deviation)"


def calibration_document(calibration: "Calibration") -> dict[str, Any]:
    return {"calibration": calibration.whose, "step_noise_ms": calibration.noise_ms}


def plan_document(
    plan: "Plan", traffic: "Traffic", calibration: "Calibration", notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "source": traffic.source,
        **calibration_document(calibration),
        "notes": [*traffic.notes, *notes, *plan.notes],
        "traffic": kinds_document(traffic.kinds),
        "by_hour": {str(hour): kinds_document(kinds) for hour, kinds in traffic.by_hour.items()},
        "planned": figures_document(plan.grid),
        "gap": plan.gap,
        "worth_it": plan.worth_it,
        "verdict": plan.verdict,
        "compared": {name: figures_document(f) for name, f in plan.compared.items()},
        **_worth_document(plan),
    }


def comparison_document(
    grids: Sequence["ArtifactGrid"], traffic: "Traffic", calibration: "Calibration"
) -> dict[str, Any]:
    return {
        "source": traffic.source,
        **calibration_document(calibration),
        "notes": _comparison_notes(grids, traffic),
        "grids": [
            {
                "artifact": one.name,
                **figures_document(one.judged.grid),
                **_worth_document(one.judged),
            }
            for one in grids
        ],
    }


def _worth_document(judged: "Judged") -> dict[str, Any]:
    return {
        "marginals": [{**asdict(m), "words": m.words} for m in judged.marginals],
        "front": [figures_document(figures) for figures in judged.front],
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
