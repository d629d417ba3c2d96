"""``canaryctl doctor``: what a release needs of this machine, and whether it is there."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import Table, emit_json

if TYPE_CHECKING:
    from canaryctl.controller.settings import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """``good``: True, False, or None where nothing is wrong and something is to be known."""

    what: str
    good: bool | None
    found: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def doctor(as_json: bool) -> int:
    """Check the machine, the database, the router's binary and what runs."""
    from canaryctl.controller.settings import Settings

    settings = Settings.from_environment()
    findings = list(_examine(settings))
    if as_json:
        emit_json(
            {"findings": [{"what": f.what, "good": f.good, "found": f.found} for f in findings]}
        )
    else:
        table = Table("what", "state", "found")
        for finding in findings:
            word = {True: "ok", False: "BAD", None: "note"}[finding.good]
            table.add(finding.what, word, finding.found)
        table.print()
    return Exit.ERROR if any(f.good is False for f in findings) else Exit.OK


def _examine(settings: "Settings") -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[Settings], Finding]], ...] = (
        ("python", _python),
        ("state directory", _state),
        ("database", _database),
        ("router", _router),
        ("GPUs", _gpus),
        ("services", _services),
    )
    for what, check in checks:
        try:
            yield check(settings)
        except Exception as error:  # a check that breaks is itself a finding
            yield Finding(what, False, f"{type(error).__name__}: {error}")


def _python(_: "Settings") -> Finding:
    return Finding("python", True, sys.version.split()[0])


def _state(settings: "Settings") -> Finding:
    folder = settings.state_dir
    folder.mkdir(parents=True, exist_ok=True)
    free_gib = shutil.disk_usage(folder).free / 2**30
    return Finding("state directory", free_gib > 1, f"{folder}, {free_gib:.1f} GiB free")


def _database(settings: "Settings") -> Finding:
    from canaryctl.controller.store import open_store

    with open_store(settings) as store:
        active = store.active_releases()
    kind = settings.database_url.split(":", 1)[0]
    return Finding("database", True, f"{kind}, {len(active)} active releases")


def _router(settings: "Settings") -> Finding:
    from canaryctl.runtimes.routers.envoy import packaged_envoy

    binary = settings.envoy or packaged_envoy()
    done = subprocess.run(
        [str(binary), "--version"], capture_output=True, text=True, timeout=20, check=False
    )
    text = " ".join(done.stdout.split()) or done.stderr.strip()
    return Finding("router", done.returncode == 0, text)


def _gpus(settings: "Settings") -> Finding:
    from canaryctl.runtimes.machine import inspect_machine

    gpus = inspect_machine().gpus
    if not gpus:
        return Finding("GPUs", None, f"none seen; {settings.simulated_gpus} for simulated engines")
    return Finding("GPUs", True, ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus))


def _services(settings: "Settings") -> Finding:
    from datetime import UTC, datetime

    from canaryctl.controller.store import open_store

    with open_store(settings) as store:
        names = [service.name for service in store.services()]
        unheld = [n for n in names if store.holder(f"service:{n}", datetime.now(UTC)) is None]
    if not names:
        return Finding("services", None, "none yet")
    if unheld:
        return Finding(
            "services",
            None,
            f"{len(names)}; nobody watches over {', '.join(unheld)}: run `canaryctl serve`",
        )
    return Finding("services", True, f"{len(names)}, all watched over")
