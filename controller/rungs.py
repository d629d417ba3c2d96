"""The rollback ladder: which rung can take the traffic back now. Pure."""

from dataclasses import dataclass

from canaryctl.controller.artifact.schema import Rung
from canaryctl.controller.model import Release
from canaryctl.controller.view import View


@dataclass(frozen=True, slots=True)
class RungState:
    """A rung of the ladder that exists for this release.

    ``healthy``: it is warm and its capacity suffices, so it may take the traffic now.
    """

    rung: Rung
    pool: str
    replicas: int
    healthy: bool


def rungs(release: Release, view: View) -> tuple[RungState, ...]:
    """The rungs that exist, in the artifact's order. An eager artifact has no eager rung."""
    found = []
    for rung in release.document.rollback.ladder:
        if rung is Rung.PREVIOUS and release.previous_pool is not None:
            pool, replicas = release.previous_pool, release.previous_replicas
        elif rung is Rung.EAGER and _has_eager(release, view):
            pool, replicas = release.eager_pool, release.document.replicas
        else:
            continue
        found.append(RungState(rung, pool, replicas, view.pool(pool).ready >= replicas))
    return tuple(found)


def _has_eager(release: Release, view: View) -> bool:
    """A first release has it only once it runs as the baseline: where nobody is served yet,
    nothing is started in order to roll back."""
    if not release.document.runtime.uses_graphs:
        return False
    return release.previous_pool is not None or bool(view.pool(release.eager_pool).members)


def best_rung(release: Release, view: View) -> RungState | None:
    """The first healthy rung, in the ladder's order."""
    return next((rung for rung in rungs(release, view) if rung.healthy), None)


def must_start(release: Release, view: View) -> tuple[RungState, ...]:
    """Rungs to have running during a rollback: up to and including the first healthy one.

    ``previous`` runs anyway; ``eager`` is started only when the rungs before it cannot serve.
    """
    needed = []
    for rung in rungs(release, view):
        needed.append(rung)
        if rung.healthy:
            break
    return tuple(needed)
