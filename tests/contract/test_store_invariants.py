"""What the database refuses by itself, also from another program's raw SQL."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, Executable, delete, insert, update
from sqlalchemy.exc import IntegrityError

from canaryctl.controller.model import InstanceState, Lease, Measurement, Release
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store, tables
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.gates.base import GateContext
from canaryctl.gates.terms import GateTerms
from tests.support.stored import (
    DIGESTS,
    NOW,
    claim,
    end,
    instance,
    look_record,
    release,
    result,
)


@pytest.fixture
def raw(store: Store, store_url: str) -> Iterator[Engine]:
    """The database without the store, as another program would use it."""
    engine = create_store_engine(store_url)
    yield engine
    engine.dispose()


def test_times_are_utc_and_never_naive(store: Store, started: Release, fence: Lease) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    stored = store.commit(replace(started, step_at=elsewhere), [], fence=fence, now=NOW)
    found = store.release(stored.id).step_at
    assert found == NOW
    assert found.utcoffset() == timedelta(0)
    with pytest.raises(Exception, match="naive"):
        store.commit(replace(stored, step_at=NOW.replace(tzinfo=None)), [], fence=fence, now=NOW)


def test_invariants_hold_against_any_program(
    store: Store, started: Release, fence: Lease, raw: Engine
) -> None:
    ended = end(store, started, fence)
    terms = GateTerms((), GateContext(1, 0.5, 15.0, 0.1), "no_harm")
    current = store.create_release(release(), now=NOW, actor="ann", terms=terms)
    store.add_instance(instance("i1"), fence=fence, now=NOW, gpus=claim(0))
    store.add_instance(instance("i2"), fence=fence, now=NOW, gpus=claim(1, share=True))
    store.add_instance(instance("i3"), fence=fence, now=NOW, gpus=None)
    store.update_instance(instance("i3", state=InstanceState.DEAD), fence=fence, now=NOW)
    measured = (Measurement("oom", result(), "0" * 64),)
    look = look_record(current.id, measurements=measured)
    current = store.commit(current, [], fence=fence, now=NOW, look=look)
    releases, instances, gpus = tables.releases, tables.instances, tables.gpu_leases

    def lease(gpu: int, fraction: float, *, shared: bool) -> Executable:
        return insert(gpus).values(
            inventory="local", gpu=gpu, instance="i3", fraction=fraction, shared=shared
        )

    a_final = update(releases).where(releases.c.id == ended.id)
    a_current = update(releases).where(releases.c.id == current.id)
    refused: list[Executable] = [
        a_final.values(phase=Phase.PROGRESSING, finished_at=None),
        a_final.values(phase=Phase.SUCCEEDED),
        a_final.values(finished_at=None),
        a_current.values(phase="asleep"),
        a_current.values(kind="wish"),
        a_current.values(weight=101),
        a_current.values(weight=-1),
        a_current.values(phase=Phase.SUCCEEDED),  # without finished_at
        a_current.values(digest=DIGESTS["f"]),
        update(instances).where(instances.c.id == "i3").values(state="ready", ended_at=None),
        update(instances).where(instances.c.id == "i1").values(state="lost"),
        update(instances).where(instances.c.id == "i1").values(state="dead"),
        lease(0, 0.05, shared=True),
        lease(1, 0.05, shared=False),
        lease(1, 0.2, shared=True),
        lease(2, 1.5, shared=False),
        update(gpus).values(fraction=0.1),
        update(tables.leases).values(token=0),
        update(tables.leases).values(holder="two"),
        delete(tables.leases),
        delete(tables.services),
    ]
    for table in (
        tables.runtimes,
        tables.artifacts,
        tables.release_events,
        tables.gate_terms,
        tables.looks,
        tables.measurements,
    ):
        changed = {column.name: column for column in table.primary_key.columns}
        refused += [update(table).values(changed), delete(table)]
    for statement in refused:
        with pytest.raises(IntegrityError), raw.begin() as connection:
            connection.execute(statement)
    second: dict[str, Any] = {
        **{column.name: getattr(current, column.name, None) for column in releases.columns},
        "serial": 99,
        "id": "second",
        "document": {},
    }
    with pytest.raises(IntegrityError), raw.begin() as connection:
        connection.execute(insert(releases).values(second))
    with raw.begin() as connection:  # the same statement for a service that has none
        connection.execute(insert(tables.services).values(name="other", port=8101, created_at=NOW))
        connection.execute(insert(releases).values({**second, "service": "other"}))
        connection.execute(lease(1, 0.1, shared=True))
        connection.execute(a_current.values(weight=100))
