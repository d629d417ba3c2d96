"""Two daemons on PostgreSQL: in every release one is frozen beyond its lease and one is killed.

    python -m benchmarks.two_daemons --releases 30 --seed 1

The moments are seeded random. The frozen one is the acting one three times out of four and goes on
afterwards, wherever it stood. A watcher that belongs to neither compares engines and the router's
weights with the records all the time. Exits with 1 when a release does not end as its kind says,
anything of a frozen daemon lands, or a user's request fails for it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from canaryctl.controller.states import Phase
from tests.support.daemons import TAKE_OVER_S, Drill, Ended, Site, Watcher
from tests.support.postgresql import cluster, database, find_binaries


def table(ended: Sequence[Ended]) -> str:
    lines = [
        "| release | kind | ended | frozen in | killed in | taken over after | refused | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, one in enumerate(ended, start=1):
        took = "-" if one.take_over_s is None else f"{one.take_over_s:.1f} s"
        lines.append(
            f"| {number} | {one.kind} | {one.outcome} | {one.frozen} | {one.killed} | {took} | "
            f"{'yes' if one.refused else '-'} | {one.seconds:.0f} s |"
        )
    took_s = [one.take_over_s for one in ended if one.take_over_s is not None]
    refused = sum(one.refused for one in ended)
    right = sum(one.wrong is None for one in ended)
    median, longest = (f"{pick(took_s):.1f} s" for pick in (statistics.median, max))
    told = (
        f"{right} of {len(ended)} releases ended right. Taken over from a frozen daemon "
        f"{len(took_s)} times while the other was there, after {median} in the median and "
        f"{longest} at most; {refused} times the frozen one went on with something and was "
        "refused."
    )
    return "\n".join([*lines, "", told])


def run(folder: Path, url: str, releases: int, seed: int) -> tuple[str, list[str]]:
    """The table, and all that must not be."""
    site = Site(folder, url)
    try:
        drill = Drill(site, seed)
        assert site.ended(site.submit("good")).phase is Phase.SUCCEEDED
        site.settled()
        load = site.load()
        with Watcher(site) as watcher:
            for kind in drill.kinds(releases):
                ended = drill.run(kind)
                print(ended, flush=True)
        drill.close()
        targets = load.end().document["targets"].values()
    finally:
        site.close()
    answered = sum(target["ok"] for target in targets)
    lost: Counter[str] = Counter()
    for target in targets:
        lost.update(target["failures"].get("before_response", {}))
    # An engine that runs out of memory says so to those whose first token it had not made.
    out_of_memory = lost.pop("http_500", 0) if any(e.kind == "oom" for e in drill.ended) else 0
    wrong = [f"{e.kind}: {e.wrong}" for e in drill.ended if e.wrong is not None]
    wrong += watcher.wrong
    wrong += [f"requests failed before a response: {why} {count}" for why, count in lost.items()]
    wrong += [
        f"taken over after {e.take_over_s:.1f} s"
        for e in drill.ended
        if e.take_over_s is not None and e.take_over_s > TAKE_OVER_S
    ]
    summary = (
        f"{watcher.looks} looks at the router. {answered} requests answered, {out_of_memory} "
        f"refused with 500 by an engine that ran out of memory, {lost.total()} failed otherwise "
        f"before a response. Wrong: {len(wrong)}"
    )
    return f"{table(drill.ended)}\n\n{summary}", wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--releases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        sys.exit("no PostgreSQL is installed; run tools/test-services as root")
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="canaryctl-daemons-") as folder,
        cluster(binaries) as server,
        database(server) as url,
    ):
        text, wrong = run(Path(folder), url, given.releases, given.seed)
    load = ", ".join(f"{value:.0f}" for value in os.getloadavg())
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"\n{os.cpu_count()} cores, {memory:.0f} GiB of memory (load at the end {load}); "
        f"seed {given.seed}; {(time.monotonic() - began) / 60:.0f} min\n\n{text}"
    )
    for line in wrong:
        print(f"- {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
