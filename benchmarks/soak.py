"""Releases without end: good and bad in seeded random order over several services side by side.

    python -m benchmarks.soak --releases 100 --services 3 --seed 1

Everything is real but the model: engines are simulated processes, each service has an Envoy and
a load of its own, that asks all the time. Each release must end where its kind says, by the
gate that its kind names; stable must answer every request that no dying engine had begun to
answer; and in the end no engine, router, port, GPU lease or active release may be left. Exits
with 1 where any of that does not hold.
"""

import argparse
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from canaryctl.controller.model import InstanceState
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store
from tests.support.artifacts import BAD, GPUS, KINDS, artifact, first, write, write_load
from tests.support.cli import Cli, Running
from tests.support.watching import OneProcessEach, engine_processes, store_of

GOOD_SHARE = 0.4
RELEASE_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Ended:
    """How one release ended. ``wrong``: what is not as it should be; None: all is."""

    service: str
    kind: str
    seconds: float
    wrong: str | None


@dataclass(frozen=True, slots=True)
class Load:
    """What the users of one service saw. ``cut_off``: requests that a dying engine had."""

    service: str
    answered: int
    cut_off: int
    before_response: int
    reasons: str


@dataclass
class Soak:
    """What a soak did; ``wrong`` holds all that must not be."""

    ended: list[Ended] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    seconds: float = 0.0

    def table(self) -> str:
        lines = [
            "| kind | must end | releases | as it should | median | longest |",
            "|---|---|---|---|---|---|",
        ]
        for kind in KINDS:
            found = [ended for ended in self.ended if ended.kind == kind]
            if not found:
                continue
            gates = KINDS[kind].gates
            end = f"rolled back by {' or '.join(gates)}" if gates else "promoted"
            right = sum(ended.wrong is None for ended in found)
            seconds = [ended.seconds for ended in found]
            lines.append(
                f"| {kind} | {end} | {len(found)} | {right} | "
                f"{statistics.median(seconds):.1f} s | {max(seconds):.1f} s |"
            )
        lines += [
            "",
            "| service | requests answered | cut off by a dying engine | failed otherwise |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {load.service} | {load.answered} | {load.cut_off} | {load.before_response} |"
            for load in self.loads
        ]
        lines += ["", f"{len(self.ended)} releases in {self.seconds / 60:.1f} min; "]
        lines[-1] += f"{self.looks} looks at all engine processes; wrong: {len(self.wrong)}"
        return "\n".join([*lines, *(f"- {wrong}" for wrong in self.wrong)])


@dataclass
class Side:
    """One service of the soak: its releases follow one another."""

    name: str
    folder: Path
    cli: Cli
    store: Store
    kinds: Sequence[str]
    load: Running | None = None
    ended: list[Ended] = field(default_factory=list)

    def begin(self) -> None:
        done = self.cli.release(write(self.folder, first(0, service=self.name)))
        assert done.code == 0, done.err
        profile = write_load(self.folder)
        self.load = self.cli.start("load", self.name, "--profile", profile, "--json")

    def run(self) -> None:
        for number, kind in enumerate(self.kinds, start=1):
            began = time.monotonic()
            wrong = self.release(kind, number)
            self.ended.append(Ended(self.name, kind, time.monotonic() - began, wrong))
            told = "as it should" if wrong is None else f"WRONG: {wrong}"
            print(f"{self.name} {number}/{len(self.kinds)} {kind}: {told}", flush=True)

    def release(self, kind: str, number: int) -> str | None:
        before = self.store.service(self.name).stable_digest
        file = write(self.folder, artifact(kind, number, service=self.name))
        done = self.cli.release(file, timeout_s=RELEASE_TIMEOUT_S)
        if done.code not in (0, 3):
            return f"exit code {done.code}: {done.err[-500:]}"
        document = done.document
        return outcome_fault(kind, done.code, document) or self.standing_fault(
            before if done.code else document["digest"]
        )

    def standing_fault(self, digest: str | None) -> str | None:
        """After a release one engine of the right artifact serves, and nothing else runs."""
        stable = self.store.service(self.name)
        if stable.stable_digest != digest:
            return f"stable is {stable.stable_digest}, expected {digest}"
        left = self.store.instances(service=self.name, live_only=True)
        if [(i.pool, i.state) for i in left] != [(stable.stable_pool, InstanceState.READY)]:
            return f"instances left: {[(i.id, i.state.value) for i in left]}"
        return None

    def users(self) -> Load:
        assert self.load is not None
        report = self.load.end().document
        [target] = report["targets"].values()
        failures: dict[str, dict[str, int]] = target["failures"]
        unanswered = dict(failures.get("before_response", {}))
        # An engine that runs out of memory says so to those whose first token it had not made.
        refused = unanswered.pop("http_500", 0) if "oom" in self.kinds else 0
        return Load(
            self.name,
            report["ok"],
            sum(failures.get("cut_off", {}).values()) + refused,
            sum(unanswered.values()),
            str(failures),
        )


def outcome_fault(kind: str, code: int, document: dict[str, Any]) -> str | None:
    gates = KINDS[kind].gates
    reason = str(document["reason"])
    if not gates:
        good = code == 0 and document["phase"] == Phase.SUCCEEDED
        return None if good else f"expected promoted, found {document['phase']}: {reason}"
    if code != 3 or document["rollback_target"] != "previous":
        return f"expected rolled back to previous, found {document['phase']}: {reason}"
    named = reason.split(":", maxsplit=1)[0]
    return None if named in gates else f"expected {' or '.join(gates)}, found {reason}"


def order(releases: int, services: int, seed: int) -> list[list[str]]:
    """The kinds of each service's releases; every kind as often as chance has it."""
    chance = random.Random(seed)
    kinds = [
        "good" if chance.random() < GOOD_SHARE else chance.choice(BAD) for _ in range(releases)
    ]
    return [kinds[number::services] for number in range(services)]


def soak(folder: Path, releases: int, services: int, seed: int) -> Soak:
    cli = Cli(folder / "state", CANARYCTL_SIMULATED_GPUS=GPUS)
    found, began = Soak(), time.monotonic()
    store = store_of(cli)
    sides = [
        Side(f"chat{number + 1}", folder, cli, store, kinds)
        for number, kinds in enumerate(order(releases, services, seed))
    ]
    ports: set[int] = set()
    try:
        with (
            ThreadPoolExecutor(services) as pool,
            OneProcessEach(cli.state, most=3 * services, every_s=0.5) as watch,
        ):
            list(pool.map(Side.begin, sides))
            list(pool.map(Side.run, sides))
            found.wrong += watch.wrong
            found.looks = watch.looks
        found.wrong += left_beside_stable(cli, store, services)
    finally:
        found.loads = [side.users() for side in sides if side.load is not None]
        removed = [cli.run("remove", side.name) for side in sides]
        ports = {i.port for i in store.instances()} | {s.port for s in store.services()}
        leases = store.leased_gpus()
        store.close()
    found.seconds = time.monotonic() - began
    found.ended = [ended for side in sides for ended in side.ended]
    found.wrong += [f"{e.service} {e.kind}: {e.wrong}" for e in found.ended if e.wrong]
    found.wrong += [f"remove: {done.err}" for done in removed if done.code]
    found.wrong += [
        f"{x.service}: users got no answer: {x.reasons}" for x in found.loads if x.before_response
    ]
    found.wrong += [f"cut off: {x.service} {x.cut_off}" for x in found.loads if too_many(x, sides)]
    found.wrong += [f"left over: {line}" for line in cli.left_over()]
    found.wrong += [f"GPU lease left over: {lease}" for lease in leases]
    found.wrong += [f"port left over: {port}" for port in sorted(ports) if listens(port)]
    return found


def left_beside_stable(cli: Cli, store: Store, services: int) -> list[str]:
    """While services still stand: one engine, one GPU each, and no release under way."""
    wrong = [f"active release left over: {release.id}" for release in store.active_releases()]
    engines, leases = engine_processes(cli.state), store.leased_gpus()
    if len(engines) != services:
        wrong.append(f"{len(engines)} engines run for {services} services: {sorted(engines)}")
    if {lease.instance for lease in leases} != set(engines):
        wrong.append(f"GPUs are held by {leases}, engines are {sorted(engines)}")
    return wrong


def too_many(load: Load, sides: Sequence[Side]) -> bool:
    """Only an engine that dies loses requests, and no more than it had under way."""
    [side] = [side for side in sides if side.name == load.service]
    return load.cut_off > 16 * sum(KINDS[kind].kills for kind in side.kinds)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def machine() -> str:
    return f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB of memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--releases", type=int, default=100)
    parser.add_argument("--services", type=int, default=3, help="side by side; default 3")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="canaryctl-soak-") as folder:
        found = soak(Path(folder), given.releases, given.services, given.seed)
    print(f"\n{machine()}; seed {given.seed}\n\n{found.table()}")
    sys.exit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
