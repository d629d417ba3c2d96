"""Both promotion rules, with the gate itself: ``no_harm`` and ``proven``, as soon as each holds.

Every look of every release is compared with the accelerated copy on the way.
"""

import math
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.gate_power import forms
from benchmarks.gate_power.binomial import Median, Rate
from benchmarks.gate_power.campaign import Campaign, Case, World
from benchmarks.gate_power.experiments import AT_MARGIN, EQUAL, Size
from benchmarks.gate_power.forms import Known
from benchmarks.gate_power.independent import NONE, Independent, Slowdown
from benchmarks.gate_power.queues import Q60, QK
from benchmarks.gate_power.real import latency_gate, results
from benchmarks.gate_power.ruler import Path
from canaryctl.gates.outcome import Outcome

FORM = "p99"


@dataclass(frozen=True, slots=True)
class Release:
    """Canary observations until each happened, infinite where it did not, a failure ending all.
    ``compared``: looks whose log e-values were compared with the copy's, ``unequal``: of them."""

    failed_after: float
    harmless_after: float
    passed_after: float
    compared: int
    unequal: int


@dataclass(frozen=True, slots=True)
class Releases:
    each: tuple[Release, ...]

    def rate(self, of: str) -> Rate:
        return Rate(sum(math.isfinite(getattr(r, of)) for r in self.each), len(self.each))

    def median(self, of: str) -> Median:
        return Median([getattr(r, of) for r in self.each])


def campaigns(size: Size, seed: int) -> list[Campaign]:
    cases = (
        Case(EQUAL, NONE, size.real),
        Case(AT_MARGIN, Slowdown(1.33), size.real),
        Case("+50 %", Slowdown(1.5), size.real),
    )
    worlds: tuple[World, ...] = (Independent(), QK, Q60)
    return [Campaign(world, cases, seed + n) for n, world in enumerate(worlds)]


def run(todo: Sequence[Campaign], jobs: int) -> Mapping[tuple[str, str], Releases]:
    """(world, case) → its releases."""
    tasks = [
        (campaign, repetition)
        for campaign in todo
        for repetition in range(max(case.repetitions for case in campaign.cases))
    ]
    found: dict[tuple[str, str], list[Release]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for (campaign, _), releases in zip(
            tasks, pool.map(_releases, tasks, chunksize=5), strict=True
        ):
            for case, release in zip(campaign.cases, releases, strict=True):
                found.setdefault((campaign.world.name, case.name), []).append(release)
    return {key: Releases(tuple(each)) for key, each in found.items()}


def _releases(task: tuple[Campaign, int]) -> list[Release]:
    campaign, repetition = task
    return [one(path, known) for _, path, known in campaign.releases(repetition)]


def one(path: Path, known: Known, form: str = FORM) -> Release:
    """Judge a release until it has failed, or has passed and shown no harm."""
    expected = forms.evidence(path, known)
    failing = forms.mixed(expected, forms.FORMS[form])
    passing = np.min([expected[name][1] for name in forms.FORMS[form]], axis=0)
    requests = path.requests()
    failed = harmless = passed = math.inf
    compared = unequal = 0
    for look, result in enumerate(results(latency_gate(form, known, path.ruler), path)):
        [rule] = result.details["rules"]
        compared += 1
        same = rule["log_e_fail"] == failing[look] and rule["log_e_pass"] == passing[look]
        unequal += not same
        after = float(requests[look])
        if result.outcome is Outcome.FAILED:
            failed = after
            break
        if result.outcome is Outcome.PASSED:
            passed = min(passed, after)
        if result.no_harm:
            harmless = min(harmless, after)
        if math.isfinite(passed) and math.isfinite(harmless):
            break
    return Release(failed, harmless, passed, compared, unequal)
