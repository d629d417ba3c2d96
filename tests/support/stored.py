"""A store on an empty database, and records to put into it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.model import (
    Artifact,
    GpuClaim,
    Instance,
    InstanceState,
    Lease,
    LookRecord,
    Release,
    ReleaseEvent,
    ReleaseKind,
)
from canaryctl.controller.states import Phase, Trigger
from canaryctl.controller.store import Store, open_store, upgrade
from canaryctl.gates.base import Look
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow

NOW = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
DIGESTS = {letter: "sha256:" + letter * 64 for letter in "abcdef"}

DOCUMENT = ArtifactDocument.model_validate(
    {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": "chat-small",
        "version": "1",
        "service": "chat",
        "runtime": {
            "engine": {"name": "simulated", "version": "1", "args": {"seed": 7, "faults": ["oom"]}},
            "gpu": {"count": 1, "memory_fraction": 0.3, "share": True},
            "model": {"id": "sim/small"},
            "graph": {"capture_sizes": [1, 2, 4]},
        },
        "secrets": {"TOKEN": {"from_env": "TOKEN"}},
        "rollout": {"steps": [{"weight": 5, "bake": "1m30s"}, {"weight": 50, "bake": "250ms"}]},
        "gates": [{"name": "ttft_p99", "max_regression": "12.5%"}, {"name": "oom", "max": 0}],
    }
)


def artifact(letter: str = "a", **changes: Any) -> Artifact:
    return Artifact(
        **{
            "digest": DIGESTS[letter],
            "name": "chat-small",
            "version": "1",
            "service": "chat",
            "runtime": DOCUMENT.runtime,
            "created_at": NOW,
            **changes,
        }
    )


_ids = count(1)


def release(**changes: Any) -> Release:
    return Release(
        **{
            "id": f"r{next(_ids)}-x",
            "service": "chat",
            "kind": ReleaseKind.RELEASE,
            "digest": DIGESTS["a"],
            "document": DOCUMENT,
            "phase": Phase.PENDING,
            "revision": 0,
            "created_at": NOW,
            "phase_at": NOW,
            "deadline_at": NOW + timedelta(minutes=30),
            **changes,
        }
    )


def instance(name: str, **changes: Any) -> Instance:
    return Instance(
        **{
            "id": name,
            "service": "chat",
            "pool": "p",
            "digest": DIGESTS["a"],
            "state": InstanceState.REQUESTED,
            "created_at": NOW,
            "port": 9000,
            **changes,
        }
    )


def moved(trigger: Trigger | None, **changes: Any) -> ReleaseEvent:
    return ReleaseEvent(
        **{
            "release": "",
            "seq": 0,
            "at": LATER,
            "kind": "phase" if trigger else "hold",
            "message": f"by {trigger}",
            "trigger": trigger,
            **changes,
        }
    )


def result(name: str = "oom", outcome: Outcome = Outcome.PASSED, **changes: Any) -> GateResult:
    return GateResult(**{"name": name, "outcome": outcome, "reason": "seen", **changes})


def look_record(name: str, at: float = 0.0, **changes: Any) -> LookRecord:
    """A look at an empty canary, ``at`` seconds after NOW."""
    return LookRecord(
        **{
            "release": name,
            "seq": 0,
            "at": NOW + timedelta(seconds=at),
            "look": Look(at=at, canary=ArmWindow((), 1), baseline=None),
            "outcome": Outcome.INCONCLUSIVE,
            "promotable": False,
            "measurements": (),
            **changes,
        }
    )


def end(store: Store, running: Release, fence: Lease) -> Release:
    return store.commit(
        replace(running, phase=Phase.ROLLED_BACK, reason="aborted", rollback_target="none"),
        [moved(Trigger.ABORT), moved(Trigger.RESTORED)],
        fence=fence,
        now=LATER,
    )


def claim(*candidates: int, count: int = 1, fraction: float = 0.9, share: bool = False) -> GpuClaim:
    return GpuClaim("local", candidates, count, fraction, share)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    upgrade(store_url)
    with open_store(SimpleNamespace(database_url=store_url, state_dir=Path())) as opened:
        yield opened


@pytest.fixture
def fence(store: Store) -> Lease:
    lease = store.acquire("controller", "one", 60, NOW)
    assert lease is not None
    return lease


@pytest.fixture
def started(store: Store) -> Release:
    """A pending release of the service chat."""
    store.register_artifact(artifact())
    store.ensure_service("chat", lambda: 8100, NOW)
    return store.create_release(release(), now=NOW, actor="ann")
