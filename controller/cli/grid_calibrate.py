"""``canaryctl grid calibrate``: measure what steps and graphs cost."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from canaryctl.runtimes.grid.calibration import Calibration


@click.command()
@click.option("--artifact", type=Path, metavar="FILE", help="Start its engine, with six grids.")
@click.option("--torch", "python", metavar="PYTHON",
              help="Without an engine: an interpreter that has torch and a GPU.")  # fmt: skip
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE",
              help="With --torch: layers=28, hidden=1024, … of the model's shape.")  # fmt: skip
@click.option("--kv-bytes-per-token", type=click.IntRange(min=1),
              help="Where the engine does not say.")  # fmt: skip
@click.option("--starts", type=click.IntRange(min=1), default=1, show_default=True,
              help="With --artifact: of each grid; the median capture counts.")  # fmt: skip
@click.option("--model-words", metavar="TEXT",
              help="With --artifact: what the model is called; default name or shape.")  # fmt: skip
@click.option("--out", type=Path, required=True, metavar="FILE", help="Write the calibration.")
def calibrate(
    artifact: Path | None,
    python: str | None,
    options: tuple[str, ...],
    kv_bytes_per_token: int | None,
    starts: int,
    model_words: str | None,
    out: Path,
) -> None:
    """Measure what steps and graphs cost, for --calibration.

    On a GPU that nothing else uses; minutes, one start for each of six grids. What is finished is
    kept in OUT.partial.json: cut off, the same command goes on from there.
    """
    from canaryctl.common.errors import InputError
    from canaryctl.controller.artifact.wholefile import replace_file, require_replaceable
    from canaryctl.controller.cli.grid_print import noise

    if (artifact is None) == (python is None):
        raise InputError("expected one of --artifact and --torch")
    if python is not None and (starts > 1 or kv_bytes_per_token or model_words):
        raise InputError(
            "--starts, --kv-bytes-per-token and --model-words are of an engine: expected --artifact"
        )
    if artifact is not None and options:
        raise InputError("--option is of plain torch: expected --torch")
    require_replaceable(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is ended either way
    if python is not None:
        found = _with_torch(python, options)
        replace_file(out, found.to_json())
    else:
        assert artifact is not None  # noqa: S101  the other of exactly one
        found = _with_engine(artifact, out, starts, kv_bytes_per_token, model_words)
    fitted = f"graphs fitted within {found.graphs_error:.1%}"
    click.echo(f"{out}: {found.whose}; {noise(found)}; {fitted}")


def _with_torch(python: str, options: tuple[str, ...]) -> "Calibration":
    from canaryctl.controller.calibration.plain_torch import calibrate_torch
    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.compose import lone_gpu

    with opened() as app, lone_gpu(app) as gpus:
        return calibrate_torch(python, [f"--{option}" for option in options], gpus)


def _with_engine(
    artifact: Path,
    out: Path,
    starts: int,
    kv_bytes_per_token: int | None,
    words: str | None,
) -> "Calibration":
    """Measured, and written to ``out``."""
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.artifact.wholefile import replace_file
    from canaryctl.controller.calibration.grids import require_measurable
    from canaryctl.controller.calibration.kept import Kept, kept_beside
    from canaryctl.controller.calibration.run import CalibrationRun, asked
    from canaryctl.controller.calibration.words import model_words
    from canaryctl.controller.cli.checks import document_checks
    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.compose import stage_engines
    from canaryctl.runtimes.engines.registry import engine

    loaded = load_artifact(artifact, document_checks())
    runtime = loaded.document.runtime
    adapter = engine(runtime.engine.name)
    require_measurable(runtime, adapter)
    with (
        opened() as app,
        stage_engines(app, loaded.document, pool="calibration", alone=True) as engines,
    ):
        wanted = asked(runtime, loaded.digest, starts=starts, kv_bytes_per_token=kv_bytes_per_token)
        kept = Kept(kept_beside(out), wanted, _say)
        try:
            found = CalibrationRun(
                engines,
                adapter,
                kept,
                clock=app.clock,
                starts=starts,
                kv_bytes_per_token=kv_bytes_per_token,
                say=_say,
            ).run(runtime, model_words(runtime, words))
        except BaseException:
            if len(kept):
                _say(f"{len(kept)} starts are kept in {kept.path}; the same command goes on there")
            raise
    replace_file(out, found.to_json())
    kept.remove()
    return found


def _say(line: str) -> None:
    click.echo(line, err=True)
