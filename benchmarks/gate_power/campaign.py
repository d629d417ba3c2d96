"""Many simulated releases of one world, spread over processes; each has its own random numbers."""

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from benchmarks.gate_power import forms
from benchmarks.gate_power.binomial import Median, Rate
from benchmarks.gate_power.forms import UNKNOWN, Decision, Known, Methods
from benchmarks.gate_power.independent import NONE, Slowdown
from benchmarks.gate_power.judges import JUDGES
from benchmarks.gate_power.ruler import Counts, Floats, Path, Ruler, random_source

CHUNK = 50


class World(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def ruler(self) -> Ruler: ...

    def load(self, rng: Any) -> Floats:
        """What all engines share."""
        ...

    def arm(self, rng: Any, load: Floats, engines: int, slowdown: Slowdown = NONE) -> Counts:
        """Cumulative counts [looks, edges + 1] of so many engines together."""
        ...


def history(world: World, rng: Any, *, engines: int = 10, hours: int = 1) -> Counts:
    """Equal engines beside each other, each hour under a load of its own: [engines, looks,
    edges + 1]."""
    found = []
    for _ in range(hours):
        load = world.load(rng)
        found.append(np.stack([world.arm(rng, load, 1) for _ in range(engines)]))
    return np.concatenate(found, axis=1)


@dataclass(frozen=True, slots=True)
class Case:
    """``methods``: in place of those that the repetition's history says; ``history``: whether there
    is one. ``judged``: in how many of the ``repetitions`` the other judges are asked too."""

    name: str
    slowdown: Slowdown
    repetitions: int
    methods: Methods | None = None
    history: bool = True
    baselines: int = 9
    margin: float = forms.MARGIN
    judged: int = 0


@dataclass(slots=True)
class Found:
    """All repetitions of a case. ``others``: judge → canary observations until it failed."""

    decisions: dict[str, list[Decision]] = field(
        default_factory=lambda: {form: [] for form in forms.FORMS}
    )
    others: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in JUDGES})
    phis: list[float] = field(default_factory=list)  # of the p99, as each history said

    def extend(self, other: "Found") -> None:
        for form, decisions in other.decisions.items():
            self.decisions[form] += decisions
        for judge, times in other.others.items():
            self.others[judge] += times
        self.phis += other.phis

    def failed(self, form: str) -> Rate:
        each = self.decisions[form]
        return Rate(sum(d.failed for d in each), len(each))

    def passed(self, form: str) -> Rate:
        each = self.decisions[form]
        return Rate(sum(d.passed for d in each), len(each))

    def failed_after(self, form: str) -> Median:
        return Median([d.failed_after for d in self.decisions[form]])

    def passed_after(self, form: str) -> Median:
        return Median([d.passed_after for d in self.decisions[form]])


@dataclass(frozen=True, slots=True)
class Campaign:
    """``seed``: each (seed, repetition, case) has random numbers of its own; a repetition's history
    and baseline serve all its cases."""

    world: World
    cases: tuple[Case, ...]
    seed: int
    history_hours: int = 2

    def part(self, first: int, last: int) -> list[Found]:
        """Repetitions ``first`` to ``last`` − 1 of every case."""
        found = [Found() for _ in self.cases]
        for repetition in range(first, last):
            for index, path, known in self.releases(repetition):
                self._add(self.cases[index], repetition, path, known, found[index])
        return found

    def releases(self, repetition: int) -> Iterator[tuple[int, Path, Known]]:
        """(index, release, what is known beforehand) of each case with this repetition."""
        world = self.world
        due = [i for i, case in enumerate(self.cases) if repetition < case.repetitions]
        rng = random_source(self.seed, repetition, 0)
        load = world.load(rng)
        sizes = sorted({self.cases[i].baselines for i in due})
        baselines = {size: world.arm(rng, load, size) for size in sizes}
        rng = random_source(self.seed, repetition, 1)
        engines = history(world, rng, hours=self.history_hours)
        own = forms.learned(world.ruler, engines)
        for index in due:
            case = self.cases[index]
            rng = random_source(self.seed, repetition, 2 + index)
            canary = world.arm(rng, load, 1, case.slowdown)
            known = replace(own, methods=case.methods or own.methods) if case.history else UNKNOWN
            yield index, Path(world.ruler, canary, baselines[case.baselines]), known

    @staticmethod
    def _add(case: Case, repetition: int, path: Path, known: Known, into: Found) -> None:
        evidence = forms.evidence(path, known, margin=case.margin)
        for name, form in forms.FORMS.items():
            decision = forms.decide(path, evidence, form, from_look=case.slowdown.from_look)
            into.decisions[name].append(decision)
        into.phis.append(float(known.methods["p99"][1]))
        if repetition < case.judged:
            requests = path.requests(case.slowdown.from_look)
            for name, judge in JUDGES.items():
                look = judge(path)
                into.others[name].append(np.inf if look is None else float(requests[look]))


def run(campaigns: Sequence[Campaign], jobs: int) -> Mapping[tuple[str, str], Found]:
    """(world, case) → what was found; the same for any number of ``jobs``."""
    context = multiprocessing.get_context("spawn")
    results: dict[tuple[str, str], Found] = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        parts = [(campaign, bounds) for campaign in campaigns for bounds in _chunks(campaign)]
        done = pool.map(_part, parts)
        for (campaign, _), found in zip(parts, done, strict=True):
            for case, each in zip(campaign.cases, found, strict=True):
                results.setdefault((campaign.world.name, case.name), Found()).extend(each)
    return results


def _chunks(campaign: Campaign) -> Iterator[tuple[int, int]]:
    most = max(case.repetitions for case in campaign.cases)
    for first in range(0, most, CHUNK):
        yield first, min(first + CHUNK, most)


def _part(task: tuple[Campaign, tuple[int, int]]) -> list[Found]:
    campaign, bounds = task
    return campaign.part(*bounds)
