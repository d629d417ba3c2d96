"""The plan of a release: effective steps, how many canary instances each needs, and at which
of them latency can be compared at all. Pure."""

from dataclasses import dataclass
from math import ceil

from canaryctl.controller.artifact.schema import ArtifactDocument, Step
from canaryctl.controller.model import Release, ReleaseKind

HARD_GATES = ("engine_exit", "oom", "progress")
"""Judged in every release, declared or not: an engine that died, ran out of memory or stopped
generating is never promoted."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what follows from it.

    ``unequal_load``: why latency cannot be compared here (None: it can).
    """

    step: Step
    canary_replicas: int
    unequal_load: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """``baseline_pool``: whose instances are the comparison arm; None: nothing to compare with.

    ``eager_baseline``: the baseline is the eager variant, started for this release.
    ``takes_steps``: user traffic moves in steps; a first release has none to move.
    """

    steps: tuple[PlannedStep, ...]
    replicas: int
    baseline_pool: str | None
    baseline_replicas: int
    eager_baseline: bool
    compares: bool

    @property
    def deciding_share(self) -> float:
        """The canary's share of observations at the last step that compares like with like."""
        for planned in reversed(self.steps):
            if planned.unequal_load is None:
                return planned.canary_replicas / (planned.canary_replicas + self.baseline_replicas)
        return 0.5


def make_plan(release: Release) -> Plan:
    """The plan follows from the release's own record alone, so it survives a restart."""
    document = release.document
    eager = release.kind is ReleaseKind.FIRST and document.runtime.uses_graphs
    if eager:
        baseline_pool: str | None = release.eager_pool
        baseline_replicas = 1
    else:
        baseline_pool, baseline_replicas = release.previous_pool, release.previous_replicas
    compares = release.kind is not ReleaseKind.ROLLBACK and baseline_pool is not None
    steps = tuple(
        PlannedStep(
            step=step,
            canary_replicas=max(1, ceil(step.weight * document.replicas / 100)),
            unequal_load=_unequal(step, document.replicas, baseline_replicas) if compares else None,
        )
        for step in _steps(release.kind, document)
    )
    return Plan(
        steps=steps,
        replicas=document.replicas,
        baseline_pool=baseline_pool if compares else None,
        baseline_replicas=baseline_replicas,
        eager_baseline=eager,
        compares=compares,
    )


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


def _unequal(step: Step, replicas: int, baseline_replicas: int) -> str | None:
    """Latency depends on the batch: a share is comparable when each engine gets as much."""
    if step.load is not None:
        return None
    if step.weight == 0:
        return "no traffic reaches the canary at weight 0"
    canary_replicas = max(1, ceil(step.weight * replicas / 100))
    canary_each = step.weight / canary_replicas
    baseline_each = (100 - step.weight) / baseline_replicas
    if abs(canary_each - baseline_each) <= 0.1 * max(canary_each, baseline_each):
        return None
    return (
        f"at weight {step.weight} a canary engine takes {canary_each:g} % of the traffic "
        f"and a baseline engine {baseline_each:g} %"
    )
