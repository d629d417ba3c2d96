"""``canaryctl grid``: plan the capture grid from traffic, compare grids, and see them age."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.grid_calibrate import calibrate
from canaryctl.controller.cli.output import emit_json

if TYPE_CHECKING:
    from canaryctl.controller.gridsetup import GridSetup, Question

F = TypeVar("F", bound=Callable[..., Any])


@click.group(no_args_is_help=False)
def grid() -> None:
    """Plan the capture grid from traffic, and compare grids."""


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_source = _options(
    click.option("--selector", "selectors", multiple=True, metavar="LABEL=VALUE",
                 help="From Prometheus: series with this label. May be given several times."),
    click.option("--since", default="24h", metavar="TIME", help="Prometheus: how far back; 24h."),
    click.option("--hours", metavar="FIRST-LAST", help="Only these hours of the day (UTC)."),
    click.option("--trace", type=Path, metavar="FILE", help="Requests, replayed."),
    click.option("--speed", type=float, default=1.0, help="Replay requests so many times as fast."),
    click.option("--counts", type=Path, metavar="FILE", help="CSV: size,count or kind,size,count."),
)  # fmt: skip
_traffic = _options(
    click.option("--service", metavar="NAME", help="Its traffic, from Prometheus."),
    _source,
)
_model = _options(
    click.option("--calibration", type=Path, metavar="FILE",
                 help="What steps and graphs cost; default one H200 with Qwen3-0.6B."),
    click.option("--tokens-per-request", type=click.IntRange(min=1),
                 help="For concurrency; default max_model_len."),
)  # fmt: skip
_limits = _options(
    click.option("--objective", type=click.Choice(["step-time", "memory"]), default="step-time",
                 help="What to make least; step-time."),
    click.option("--max-memory", type=float, metavar="MIB", help="Graph memory at most."),
    click.option("--max-capture-time", metavar="TIME", help="Such as 3s."),
    click.option("--max-sizes", type=click.IntRange(min=1), help="Captured sizes at most."),
    click.option("--min-coverage", metavar="PERCENT", help="Share of steps with a graph."),
    click.option("--max-p99", metavar="TIME", help="p99 step time at most, such as 5ms."),
    click.option("--max-mean", metavar="TIME", help="Expected step time at most."),
    click.option("--margin", default="10%", metavar="PERCENT",
                 help="How much more memory and capture time to expect than predicted; 10%."),
    click.option("--min-gain", default="0.1%", metavar="PERCENT",
                 help="What a size must save of the expected step; 0.1%."),
    click.option("--worth", default="5%", metavar="PERCENT",
                 help="What graphs must save of it at all; 5%."),
)  # fmt: skip
_plot = click.option("--plot", type=Path, metavar="FILE.svg", help="Draw traffic, grids, front.")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@grid.command()
@_traffic
@click.option("--artifact", type=Path, metavar="FILE", help="Its limits, mode and own grid.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Without --artifact; 256.")
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), help="Likewise; 8192.")
@click.option("--mode", help="Graph mode; default the artifact's, else FULL_AND_PIECEWISE.")
@click.option("--sequence-parallel", type=click.IntRange(min=1), default=1,
              help="Ranks that share a step's tokens; sizes are multiples of it.")  # fmt: skip
@click.option("--against", multiple=True, metavar="SIZES", help="Also compare 1,2,4,8,…")
@_model
@_limits
@_plot
@click.option("--write", "target", type=Path, metavar="ARTIFACT",
              help="Set graph and warmup_plan there; comments stay.")  # fmt: skip
@_as_json
def plan(
    artifact: Path | None,
    against: tuple[str, ...],
    plot: Path | None,
    target: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the sizes worth a graph for some traffic.

    Traffic comes from Prometheus (--service or --selector), a request trace, or counts.
    """
    from canaryctl.controller.gridplot import draw_plan
    from canaryctl.runtimes.grid.planner import plan_grid

    setup, question = _prepare(artifact or target, against, options)
    traffic = setup.traffic(question)
    shapes = traffic.planned(setup.rules.max_num_seqs)
    found = plan_grid(shapes, setup.cost, setup.rules, setup.wish, setup.others)
    setup.require_resolved(found.grid.sizes)
    if plot is not None:
        plot.write_text(draw_plan(shapes, found, traffic.source), "utf-8")
    if target is not None:
        written = setup.write(target, found.grid, shapes, traffic)
        click.echo(f"wrote {target}, runtime {written}", err=True)
    calibration = setup.cost.calibration
    if as_json:
        from canaryctl.controller.cli.grid_print import plan_document

        emit_json(plan_document(found, traffic, calibration, setup.notes))
        return
    from canaryctl.controller.cli.grid_print import print_plan

    print_plan(found, traffic, calibration, setup.notes)


@grid.command()
@click.argument("before", metavar="A", type=Path)
@click.argument("after", metavar="B", type=Path)
@_traffic
@_model
@_plot
@_as_json
def compare(before: Path, after: Path, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Show what the grids of two artifacts do with the same traffic."""
    from canaryctl.controller.gridplot import draw_comparison
    from canaryctl.controller.gridsetup import grid_of

    setup, question = _prepare(before, (), {**_DEFAULTS, **options})
    traffic = setup.traffic(question)
    found = [
        grid_of(path, traffic, setup.cost, question.tokens_per_request) for path in (before, after)
    ]
    if plot is not None:
        plot.write_text(draw_comparison(found, traffic.source), "utf-8")
    calibration = setup.cost.calibration
    if as_json:
        from canaryctl.controller.cli.grid_print import comparison_document

        emit_json(comparison_document(found, traffic, calibration))
        return
    from canaryctl.controller.cli.grid_print import print_comparison

    print_comparison(found, traffic, calibration)


@grid.command()
@click.argument("artifact", metavar="ARTIFACT", type=Path)
@click.option("--write", is_flag=True, help="Set warmup_plan there; comments stay.")
@_as_json
def warmup(artifact: Path, write: bool, as_json: bool) -> None:
    """Make a warm-up plan of an artifact's own grid, or of its engine's default.

    Decode buckets as far as max_num_seqs, mixed-token buckets above.
    """
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.artifact.rewrite import write_warmup
    from canaryctl.controller.gridsetup import warmup_of

    decode, mixed = warmup_of(load_artifact(artifact).document.runtime)
    if write:
        loaded = write_warmup(artifact, decode_buckets=decode, mixed_token_buckets=mixed)
        click.echo(f"wrote {artifact}, runtime {loaded.digest}", err=True)
    if as_json:
        emit_json({"decode_buckets": decode, "mixed_token_buckets": mixed})
        return
    click.echo(
        f"warmup_plan:\n  decode_buckets: {list(decode)}\n  mixed_token_buckets: {list(mixed)}"
    )


@grid.command()
@click.argument("service", metavar="SERVICE")
@click.option("--plan", "plan_file", type=Path, metavar="FILE",
              help="The stored plan; default that of the stable runtime.")  # fmt: skip
@click.option("--tolerance", default="2%", metavar="PERCENT",
              help="What a new plan must save of the expected step; 2%.")  # fmt: skip
@_source
@_model
@_as_json
def drift(
    service: str, plan_file: Path | None, tolerance: str, as_json: bool, **options: Any
) -> Exit:
    """Say whether live traffic still fits the grid of a service's stable runtime.

    Exit code 1 where it is time to replan.
    """
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_ratio
    from canaryctl.controller.cli.grid_print import figures_document
    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.gridsetup import drift_of

    live = not (options["trace"] or options["counts"] or options["selectors"])
    with opened() as app:
        stable = app.store.service(service).stable_digest
        if stable is None:
            raise InputError(f"{service} has no stable runtime yet")
        artifact = app.store.artifact(stable)
    question = _question({**_DEFAULTS, **options, "service": service if live else None})
    found, stored = drift_of(
        artifact.runtime, artifact.digest, question, plan_file, parse_ratio(tolerance)
    )
    if as_json:
        emit_json(
            {
                "service": service,
                "artifact": artifact.digest,
                "planned_from": stored.source,
                "planned_at": stored.planned_at,
                "replan": found.replan,
                "enough": found.enough,
                "regret": found.regret,
                "decode_distance": found.decode_distance,
                "mixed_distance": found.mixed_distance,
                "live": figures_document(found.live),
                "planned": figures_document(found.plan.grid),
                "verdict": found.verdict,
            }
        )
    else:
        click.echo(f"planned from {stored.source}, {stored.planned_at}")
        for name, value in (
            ("decodes", found.decode_distance),
            ("steps with prompts", found.mixed_distance),
        ):
            said = "not in both" if value is None else f"{value:.1%} apart at most"
            click.echo(f"{name}: {said}")
        click.echo(found.verdict)
    return Exit.ERROR if found.replan else Exit.OK


grid.add_command(calibrate)

_DEFAULTS = {
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "mode": None,
    "sequence_parallel": 1,
    "objective": "step-time",
    "max_memory": None,
    "max_capture_time": None,
    "max_sizes": None,
    "min_coverage": None,
    "max_p99": None,
    "max_mean": None,
    "margin": "0%",
    "min_gain": "0.1%",
    "worth": "5%",
}


def _question(options: dict[str, Any]) -> "Question":
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_duration, parse_ratio
    from canaryctl.controller.gridsetup import Question

    def read(name: str, parse: Callable[[object], float]) -> float | None:
        if options[name] is None:
            return None
        try:
            return parse(options[name])
        except ValueError as error:
            raise InputError(f"--{name.replace('_', '-')}: {error}") from None

    parsed = {
        **{name: read(name, parse_duration) for name in _DURATIONS},
        **{name: read(name, parse_ratio) for name in _RATIOS},
    }
    return Question(**{**options, **parsed})


_DURATIONS = ("since", "max_capture_time", "max_p99", "max_mean")
_RATIOS = ("min_coverage", "margin", "min_gain", "worth")


def _prepare(
    artifact: Path | None, against: Sequence[str], options: dict[str, Any]
) -> "tuple[GridSetup, Question]":
    from canaryctl.controller.gridsetup import prepare

    question = _question(options)
    return prepare(question, artifact, against), question
