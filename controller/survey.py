"""Looking at a service before a release: what its stable instances have counted, how much traffic
there is, how long they took to start. It reads and changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from canaryctl.common.clock import Clock
from canaryctl.common.errors import InputError
from canaryctl.common.metrics import AnySignal, Signal, references
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.forecast import Rate, Survey
from canaryctl.controller.judge import gate_terms
from canaryctl.controller.loads import DEFAULT_RATE_PER_S
from canaryctl.controller.model import Instance, InstanceState, Release
from canaryctl.controller.plan import make_plan
from canaryctl.controller.store import Store
from canaryctl.gates.deltas import awaited, readable, window
from canaryctl.gates.samples import ArmWindow, Delta, Missing, Scrape, Series
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.load.profile import Profile, parse_profile

APART_S = 3.0
"""Between the two scrapes from which the rate is counted, if there is traffic enough."""

LONGEST_S = 10.0
"""The same where there is little."""

ENOUGH = 40
"""Requests from which the rate is known to about a third."""

NEW_SAMPLE_S = 35.0
"""How long a store of samples is given to scrape again: it may do so every half minute."""


class Surveyor:
    """``source``, ``metrics_url`` and ``labels`` as for the judge."""

    def __init__(
        self,
        store: Store,
        source: Callable[[Release], SampleSource],
        catalog: Catalog,
        metrics_url: Callable[[Instance], str],
        labels: Callable[[Instance, Release], Mapping[str, str]],
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._store, self._source, self._catalog = store, source, catalog
        self._metrics_url, self._labels = metrics_url, labels
        self._executor, self._clock = executor, clock

    def survey(self, release: Release, rate: float | None) -> Survey:
        """``release`` need not be recorded. ``rate``: requests a second to the service, where a
        person knows better; None: it is counted, which takes seconds."""
        loads = {s.load: _load_rate(s.load) for s in release.document.rollout.steps if s.load}
        loads.setdefault("generated", _load_rate("generated"))
        given = Rate.given(rate) if rate is not None else None
        running = [
            instance
            for instance in self._store.instances(service=release.service, live_only=True)
            if instance.state is InstanceState.READY
        ]
        stable = [i for i in running if i.pool == release.previous_pool]
        if not stable:
            why = f"{release.service} has no stable instance that is ready"
            return Survey(rate=given, silence=why, load_rates=loads)
        first = self._scrape(release, running)
        seen = [first[i.id] for i in stable if readable(first[i.id])]
        if not seen:
            reasons = [
                v.reason for v in first[stable[0].id].values.values() if isinstance(v, Missing)
            ]
            return Survey(
                rate=given, silence=f"the baseline cannot be read: {reasons[0]}", load_rates=loads
            )
        counted = given or self._rate(release, running, first)
        return Survey(
            past=ArmWindow(tuple(Delta(s.instance, 1.0, s.values) for s in seen), len(stable)),
            rate=counted,
            silence=None
            if counted
            else f"no request reached {release.service} while it was "
            "looked at; say with --rate how many a second there will be",
            startup_s=max(map(_startup_s, stable)),
            load_rates=loads,
        )

    def _rate(
        self, release: Release, running: Sequence[Instance], first: Mapping[str, Scrape]
    ) -> Rate | None:
        """Of the whole service: a release under way takes part of its traffic."""
        names = [instance.id for instance in running]
        began, waited = self._clock.now(), 0.0
        found: Rate | None = None
        while waited < NEW_SAMPLE_S:
            self._clock.sleep(APART_S)
            waited = (self._clock.now() - began).total_seconds()
            later = self._scrape(release, running)
            if awaited(first, later):
                continue
            seen = window(first, later, names)
            requests, span_s = _requests(seen)
            found = Rate.counted(requests, span_s) if requests and span_s else None
            if requests == 0 or requests >= ENOUGH or waited >= LONGEST_S:
                break
        return found

    def _scrape(self, release: Release, running: Sequence[Instance]) -> dict[str, Scrape]:
        wanted: set[AnySignal] = {Signal.REQUESTS}
        gates = gate_terms(release, make_plan(release)).gates()
        wanted.update(*(gate.needs() for gate in gates.values()))
        source, now = self._source(release), self._clock.now()

        def read(instance: Instance) -> Scrape:
            artifact = self._catalog.artifact(instance.digest)
            known = self._catalog.engine(artifact.digest).metrics(artifact.runtime.engine.version)
            target = Target(
                instance.id, self._metrics_url(instance), self._labels(instance, release)
            )
            return source.read(target, references(wanted, known), now.timestamp())

        return {scrape.instance: scrape for scrape in self._executor.map(read, running)}


def _requests(seen: ArmWindow) -> tuple[int, float]:
    """Requests and mean seconds of the instances that could be read."""
    read = [
        (value.total, delta.span_s)
        for delta in seen.deltas
        if isinstance(value := delta.values.get(Signal.REQUESTS), Series)
    ]
    if not read:
        return 0, 0.0
    return round(sum(total for total, _ in read)), sum(span for _, span in read) / len(read)


def _startup_s(instance: Instance) -> float:
    return (instance.stages[Stage.READY] - instance.created_at).total_seconds()


def _load_rate(load: str) -> float:
    """Requests a second to each engine; ProfileError for a file that is no profile."""
    if load == "generated":
        return float(DEFAULT_RATE_PER_S)
    try:
        text = Path(load).read_text()
    except OSError as error:
        raise InputError(f"the load profile {load} cannot be read: {error.strerror}") from error
    return _mean_rate(parse_profile(text, load))


def _mean_rate(profile: Profile) -> float:
    if profile.rate is not None:
        return profile.rate
    whole_s = sum(phase.duration for phase in profile.phases)
    return sum(phase.rate * phase.duration for phase in profile.phases) / whole_s
