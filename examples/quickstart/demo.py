"""`make demo`: a first release, a good one and a bad one, with simulated engines and real traffic.

Everything but the engines is what production uses: Envoy routes, gates judge scraped samples,
SQLite keeps the record. It cleans up after itself and can be run again.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATE = Path.cwd() / ".demo"
CLI = [str(Path(sys.executable).parent / "canaryctl")]
ENV = {**os.environ, "CANARYCTL_STATE_DIR": str(STATE)}
SERVICE = "chat"


def say(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*arguments: str) -> int:
    print("$ canaryctl", *arguments, flush=True)
    return subprocess.run([*CLI, *arguments], env=ENV, check=False).returncode


def clean() -> None:
    """End what an interrupted demo left; its record is replaced by the new one."""
    if not (STATE / "canaryctl.db").exists():
        return
    quiet = {"env": ENV, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    listed = subprocess.run(
        [*CLI, "history", SERVICE, "--limit", "1", "--json"],
        env=ENV,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    if '"outcome": "held"' in listed:
        release = listed.split('"release": "', 1)[1].split('"', 1)[0]
        subprocess.run([*CLI, "abort", release], check=False, **quiet)  # type: ignore[call-overload]
        subprocess.run([*CLI, "status", release, "--wait"], check=False, **quiet)  # type: ignore[call-overload]
    subprocess.run([*CLI, "remove", SERVICE], check=False, **quiet)  # type: ignore[call-overload]
    shutil.rmtree(STATE)


def expect(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        sys.exit(f"demo: {what} ended with exit code {found}, expected {wanted}")


def main() -> None:
    began = time.monotonic()
    clean()
    say("The first runtime of the service (the engines here are simulated)")
    expect(run("release", str(HERE / "stable.yaml")), 0, "the first release")

    load = subprocess.Popen(
        [*CLI, "load", SERVICE, "--profile", str(HERE / "load.yaml")],
        env=ENV,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        say("A better capture grid, released under traffic: promoted")
        expect(run("release", str(HERE / "good.yaml")), 0, "the good release")

        say("A runtime that silently runs eager: rolled back by a gate")
        expect(run("release", str(HERE / "fallback.yaml")), 3, "the bad release")
    finally:
        load.send_signal(signal.SIGTERM)
        report, _ = load.communicate(timeout=30)

    say("What the users saw meanwhile")
    print(report.rstrip(), flush=True)
    say("What ran, and why each release ended as it did")
    run("history", SERVICE)
    run("remove", SERVICE)
    print(
        f"\nEvidence: {STATE}/canaryctl.db (records, gate states, raw samples), "
        f"{STATE}/instances (engine logs), {STATE}/routers (Envoy)\n"
        f"Ask it: CANARYCTL_STATE_DIR={STATE} {CLI[0]} gates explain RELEASE\n"
        f"The demo took {time.monotonic() - began:.0f} s.",
        flush=True,
    )


if __name__ == "__main__":
    main()
