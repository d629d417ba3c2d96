"""Builders of release records and views for tests of the pure controller."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.model import (
    Instance,
    InstanceState,
    Release,
    ReleaseKind,
    Service,
)
from canaryctl.controller.plan import make_plan
from canaryctl.controller.states import Phase
from canaryctl.controller.view import InstanceView, PoolView, View
from canaryctl.gates.outcome import GateResult, Outcome, Verdict
from canaryctl.runtimes.engines.base import Stage

T0 = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PREVIOUS = "r0"
CANARY = "r1"


def document(**overrides: Any) -> ArtifactDocument:
    """A valid artifact document; ``overrides`` replace top-level keys."""
    base: dict[str, Any] = {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": "chat-model",
        "version": "2",
        "service": "chat",
        "runtime": {
            "engine": {"name": "simulated", "version": "0.25.1"},
            "model": {"id": "m"},
        },
        "rollout": {
            "steps": [{"weight": 10, "bake": "10s"}, {"weight": 50, "bake": "20s"}],
            "rollback_window": "30s",
            "progress_deadline": "10m",
        },
        "gates": [{"name": "ttft_p90", "max_regression": "46%"}],
    }
    return ArtifactDocument.model_validate({**base, **overrides})


def release(phase: Phase = Phase.PROGRESSING, **changes: Any) -> Release:
    doc = changes.pop("document", None) or document()
    base = Release(
        id=CANARY,
        service="chat",
        kind=ReleaseKind.RELEASE,
        digest="sha256:" + "b" * 64,
        document=doc,
        phase=phase,
        revision=3,
        created_at=T0,
        phase_at=T0,
        deadline_at=T0 + timedelta(minutes=10),
        previous_digest="sha256:" + "a" * 64,
        previous_pool=PREVIOUS,
        weight=10,
    )
    return replace(base, **changes)


def instance(
    pool: str, *, state: InstanceState = InstanceState.READY, number: int = 0, **changes: Any
) -> Instance:
    stages = dict.fromkeys(Stage, T0) if state is InstanceState.READY else {}
    base = Instance(
        id=f"{pool}-{number}",
        service="chat",
        pool=pool,
        digest="sha256:" + ("b" if pool == CANARY else "a") * 64,
        state=state,
        created_at=T0,
        port=9000 + number,
        stages=stages,
    )
    return replace(base, **changes)


def pool(name: str, ready: int = 1, *, dead: int = 0) -> PoolView:
    alive = [InstanceView(instance(name, number=n), alive=True) for n in range(ready)]
    gone = [InstanceView(instance(name, number=ready + n), alive=False) for n in range(dead)]
    return PoolView((*alive, *gone))


def result(
    name: str = "ttft_p90", outcome: Outcome = Outcome.INCONCLUSIVE, **changes: Any
) -> GateResult:
    return GateResult(name=name, outcome=outcome, reason=f"{name} says so", **changes)


def verdict(
    *results: GateResult, promotable: bool = False, missing: tuple[str, ...] = ()
) -> Verdict:
    worst = next(
        (
            o
            for o in (Outcome.FAILED, Outcome.ERROR, Outcome.INCONCLUSIVE)
            if o in {r.outcome for r in results}
        ),
        Outcome.PASSED,
    )
    return Verdict(worst, results, "no harm found", promotable, missing)


def clean(*extra: GateResult, promotable: bool = False) -> Verdict:
    """Every hard gate has passed."""
    hard = [result(name, Outcome.PASSED) for name in ("engine_exit", "oom", "progress")]
    return verdict(*hard, *extra, promotable=promotable)


def view(rel: Release | None, *, at: float = 0.0, **changes: Any) -> View:
    """``at``: seconds after T0. Both pools are healthy unless said otherwise."""
    pools: Mapping[str, PoolView] = changes.pop(
        "pools", {PREVIOUS: pool(PREVIOUS), CANARY: pool(CANARY)}
    )
    base = View(
        now=T0 + timedelta(seconds=at),
        service=Service("chat", 8000, T0, "sha256:" + "a" * 64, PREVIOUS),
        release=rel,
        plan=make_plan(rel) if rel else None,
        pools=pools,
        effective={PREVIOUS: 90, CANARY: 10},
        looked=True,
    )
    return replace(base, **changes)
