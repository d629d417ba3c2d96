"""The plan of a release: effective steps, how many canary instances each needs, and at which
of them latency can be compared at all. Pure."""

from dataclasses import dataclass
from math import ceil

from canaryctl.controller.artifact.schema import ArtifactDocument, Baseline, Step
from canaryctl.controller.model import Release, ReleaseKind
from canaryctl.controller.states import Phase

HARD_GATES = ("engine_exit", "oom", "progress")
"""Judged in every release, declared or not: an engine that died, ran out of memory or stopped
generating is never promoted."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what follows from it.

    ``baseline_replicas``: engines of the comparison arm, whole.
    ``unequal_load``: why latency cannot be compared here (None: it can).
    """

    step: Step
    canary_replicas: int
    baseline_replicas: int
    unequal_load: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """``baseline_pool``: whose instances are the comparison arm; None: nothing to compare with.

    ``eager_baseline``: the baseline is the eager variant, started for this release.
    ``fresh_baseline``: it is new instances of the stable artifact, as many as the canary's.
    """

    steps: tuple[PlannedStep, ...]
    replicas: int
    baseline_pool: str | None
    eager_baseline: bool
    fresh_baseline: bool
    compares: bool

    @property
    def own_baseline(self) -> bool:
        """The baseline is started for this release, and warmed like its canary."""
        return self.eager_baseline or self.fresh_baseline

    def baseline_in(self, release: Release) -> str | None:
        """The comparison arm in the release's phase. A fresh baseline is gone after the steps;
        what is told of the canary then is told beside the stable pool."""
        if self.fresh_baseline and release.phase in (Phase.PROMOTING, Phase.WATCHING):
            return release.previous_pool
        return self.baseline_pool

    @property
    def deciding_share(self) -> float:
        """The canary's share of observations at the last step that compares like with like."""
        for planned in reversed(self.steps):
            if planned.unequal_load is None:
                both = planned.canary_replicas + planned.baseline_replicas
                return planned.canary_replicas / both
        return 0.5


def make_plan(release: Release) -> Plan:
    """The plan follows from the release's own record alone, so it survives a restart."""
    document = release.document
    eager = release.kind is ReleaseKind.FIRST and document.runtime.uses_graphs
    fresh = release.kind is ReleaseKind.RELEASE and document.rollout.baseline is Baseline.FRESH
    if eager:
        baseline_pool: str | None = release.eager_pool
    else:
        baseline_pool = release.fresh_pool if fresh else release.previous_pool
    compares = release.kind is not ReleaseKind.ROLLBACK and baseline_pool is not None
    steps = tuple(
        _planned(step, release, eager=eager, fresh=fresh, compares=compares)
        for step in _steps(release.kind, document)
    )
    return Plan(
        steps=steps,
        replicas=document.replicas,
        baseline_pool=baseline_pool if compares else None,
        eager_baseline=eager,
        fresh_baseline=fresh,
        compares=compares,
    )


def _planned(
    step: Step, release: Release, *, eager: bool, fresh: bool, compares: bool
) -> PlannedStep:
    """Each arm has the engines that its share of traffic needs. Beside a fresh baseline both
    have as many, so that each engine takes as much: those of whichever artifact needs more, as
    long as the canary has so many at all."""
    replicas = release.document.replicas
    canary = _engines(step, replicas)
    if fresh:
        baseline = max(canary, _engines(step, release.previous_replicas))
        canary = min(baseline, replicas)
    else:
        baseline = 1 if eager else release.previous_replicas
    stable_share = step.weight if fresh else 100 - step.weight
    unequal = _unequal(step, canary, baseline, stable_share) if compares else None
    return PlannedStep(step, canary, baseline, unequal)


def _engines(step: Step, replicas: int) -> int:
    return max(1, ceil(step.weight * replicas / 100))


def _steps(kind: ReleaseKind, document: ArtifactDocument) -> tuple[Step, ...]:
    if kind is ReleaseKind.ROLLBACK:
        return (Step(weight=0),)
    if kind is ReleaseKind.FIRST:
        # Nobody is served yet: no traffic can be moved, so the controller makes requests.
        loaded = tuple(step for step in document.rollout.steps if step.load is not None)
        return loaded or (Step(weight=0, load="generated"),)
    steps = document.rollout.steps
    if steps[-1].pause:
        # A person lets go of the last step and the promotion rule still applies: it needs a
        # step of its own to be judged at.
        return (*steps, steps[-1].model_copy(update={"pause": False, "bake": 0.0}))
    return steps


def _unequal(step: Step, canary: int, baseline: int, baseline_share: int) -> str | None:
    """Latency depends on the batch: a share is comparable when each engine gets as much.

    ``canary`` and ``baseline`` engines; ``baseline_share`` of the traffic, per cent.
    """
    if step.load is not None:
        return None
    if step.weight == 0:
        return "no traffic reaches the canary at weight 0"
    canary_each, baseline_each = step.weight / canary, baseline_share / baseline
    if abs(canary_each - baseline_each) <= 0.1 * max(canary_each, baseline_each):
        return None
    return (
        f"at weight {step.weight} a canary engine takes {canary_each:g} % of the traffic "
        f"and a baseline engine {baseline_each:g} %"
    )
