"""``canaryctl gates judge``: a gate over a file of samples, without a service or a database."""

from pathlib import Path

import click

from canaryctl.controller.cli.output import emit_json


@click.command()
@click.argument("samples", type=Path, metavar="SAMPLES.JSONL")
@click.option("--gate", required=True, help="A latency gate, such as ttft_p99 or ttft.")
@click.option("--max-regression", required=True, metavar="RATIO", help="Such as 10%.")
@click.option("--alpha", default="0.01", show_default=True, help="False failures, at most.")
@click.option("--beta", default="0.05", show_default=True, help="False passes at the margin.")
@click.option("--margin", default="33%", show_default=True, help="What a pass excludes.")
@click.option(
    "--gates-total",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Gates that share alpha.",
)
@click.option(
    "--detectable", default="50%", show_default=True, help="What needed_requests would find."
)
@click.option("--history", type=Path, metavar="HISTORY.JSONL", help="An A/A history, or its .json.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def judge(
    samples: Path,
    gate: str,
    max_regression: str,
    alpha: str,
    beta: str,
    margin: str,
    gates_total: int,
    detectable: str,
    history: Path | None,
    as_json: bool,
) -> None:
    """Judge a file of samples by the very gate that judges releases.

    A line is one scrape of one instance: {"at": 15.0, "arm": "baseline" or "canary",
    "instance": "b0", "buckets": {"0.02": 3, ..., "+Inf": 41}}, cumulative. Lines of the same
    moment are one look; their order in the file does not matter.
    """
    from canaryctl.controller.samplefiles import load_history, load_samples
    from canaryctl.gates import offline
    from canaryctl.gates.spec import GateSpec

    spec = GateSpec(name=gate).model_copy(
        update={
            "max_regression": _share("--max-regression", max_regression),
            "alpha": _share("--alpha", alpha),
            "beta": _share("--beta", beta),
            "margin": _share("--margin", margin),
        }
    )
    signal = offline.judged_signal(spec)
    found = offline.judge(
        load_samples(samples),
        spec,
        gates_total=gates_total,
        detectable=_share("--detectable", detectable),
        history=None if history is None else load_history(history, signal),
    )
    if as_json:
        emit_json(found.as_document())
        return
    when = "" if found.decided_at is None else f" at {found.decided_at:g} s"
    click.echo(f"{gate} {found.result.outcome.value}{when}: {found.result.reason}")
    for name in ("fail", "pass"):
        log_e = found.log_e(name)
        click.echo(f"  ln E to {name}: {'none' if log_e is None else f'{log_e:.4g}'}")
    if found.result.needed is not None:
        click.echo(f"  canary requests: {found.result.samples} of {found.result.needed} needed")
    for note in found.notes:
        click.echo(f"  {note}")


def _share(option: str, text: str) -> float:
    """``10%`` or ``0.1``; which of the two a bare 10 means nobody could tell."""
    from canaryctl.common.errors import InputError

    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not value > 0 or (not text.endswith("%") and value >= 1):
        raise InputError(f"{option}: found {text!r}, expected a share such as 10% or 0.1")
    return value
