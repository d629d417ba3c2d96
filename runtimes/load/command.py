"""``python -m canaryctl.runtimes.load``: load from the command line, ended by SIGTERM too."""

import argparse
import asyncio
import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from canaryctl.common.errors import InputError
from canaryctl.common.units import parse_duration
from canaryctl.runtimes.load.generate import run_load
from canaryctl.runtimes.load.profile import Profile, parse_profile
from canaryctl.runtimes.load.report import LoadReport

_SEEDS = 2**31


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when any request was answered, 1 when none was, 2 for invalid input."""
    arguments = _parser().parse_args(argv)
    try:
        return main_load(
            arguments.target,
            rate=arguments.rate,
            profile_path=arguments.profile,
            duration=arguments.duration,
            requests=arguments.requests,
            model=arguments.model,
            as_json=arguments.json,
            until_eof=arguments.until_eof,
        )
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def main_load(
    targets: Sequence[str],
    *,
    rate: float | None = None,
    profile_path: Path | None = None,
    duration: str | None = None,
    requests: int | None = None,
    model: str | None = None,
    as_json: bool = False,
    until_eof: bool = False,
) -> int:
    """Run the load, write the report to stdout; InputError for what was given wrongly.

    SIGTERM and SIGINT end the run with a report of what was done so far; with ``until_eof`` the
    end of standard input does too, so that the load never outlives a parent that holds it.
    """
    profile = _profile(rate, profile_path).with_seed(secrets.randbelow(_SEEDS))
    try:
        duration_s = None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise InputError(f"--for: {error}") from error
    if requests is not None and requests < 1:
        raise InputError(f"--requests: found {requests}, expected at least 1")
    bases = [target.rstrip("/") for target in targets]
    for base in bases:
        if not base.startswith(("http://", "https://")):
            raise InputError(f"--target: found {base!r}, expected a URL such as http://host:8000")
    done = asyncio.run(
        _until_signal(
            bases,
            profile,
            duration_s=duration_s,
            requests=requests,
            model=model,
            until_eof=until_eof,
        )
    )
    if as_json:
        text = json.dumps({"seed": profile.seed, **done.as_document()}, indent=2)
    else:
        text = f"seed {profile.seed}\n{done.as_text()}"
    sys.stdout.write(text + "\n")
    return 0 if done.ok else 1


async def _until_signal(
    targets: Sequence[str],
    profile: Profile,
    *,
    duration_s: float | None,
    requests: int | None,
    model: str | None,
    until_eof: bool,
) -> LoadReport:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        Thread(target=_tell_eof, args=(loop, stop), daemon=True).start()
    return await run_load(
        targets, profile, duration_s=duration_s, requests=requests, model=model, stop=stop
    )


def _tell_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while sys.stdin.buffer.read(1024):
        continue
    with contextlib.suppress(RuntimeError):  # the run ended first, and its loop with it
        loop.call_soon_threadsafe(stop.set)


def _profile(rate: float | None, path: Path | None) -> Profile:
    if (rate is None) == (path is None):
        raise InputError("load needs exactly one of --rate and --profile")
    if path is None:
        return parse_profile(f"rate: {rate}", "--rate")
    try:
        return parse_profile(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the profile {path} cannot be read: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m canaryctl.runtimes.load", description=__doc__)
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        help="base URL; with several each gets the same requests at the same times",
    )
    parser.add_argument("--rate", type=float, help="requests per second")
    parser.add_argument("--profile", type=Path, help="a YAML file")
    parser.add_argument("--for", dest="duration", help="such as 90s or 5m")
    parser.add_argument("--requests", type=int, help="end after so many, for each target")
    parser.add_argument("--model", help="the model field of the requests")
    parser.add_argument(
        "--until-eof", action="store_true", help="end when standard input does, too"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser
