"""Evidence, faults, verdicts and the states of gates, as the store keeps them."""

from dataclasses import replace

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.controller.errors import StaleWriteError
from canaryctl.controller.model import Evidence, Fault, GateRecord, Lease, Measurement, Release
from canaryctl.controller.store import Store
from canaryctl.gates.base import GateContext
from canaryctl.gates.history import AaHistory, Dependence
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.terms import GateTerms
from canaryctl.runtimes.engines.base import EngineFault
from tests.support.stored import LATER, NOW, end, look_record, release, result


def test_evidence_is_kept_word_for_word(store: Store, started: Release, fence: Lease) -> None:
    lines = [f'metric{{le="{n}"}} {n} é\n' for n in range(450)]
    seen = [
        Evidence(started.id, NOW, "i1", "http://127.0.0.1/metrics", line, {"n": n, "x": [None]})
        for n, line in enumerate(lines)
    ]
    now = store.commit(started, [], fence=fence, now=NOW, evidence=seen)
    assert list(store.evidence(started.id)) == seen
    odd = Evidence(started.id, NOW, "i1", "s", "", {"x": [float("inf"), -1e-300]})
    store.commit(now, [], fence=fence, now=NOW, evidence=[odd])
    assert list(store.evidence(started.id))[-1] == odd
    assert list(store.evidence("zz")) == []


def test_evidence_of_a_decision_that_does_not_land_is_not_kept(
    store: Store, started: Release, fence: Lease
) -> None:
    seen = [Evidence(started.id, NOW, "i1", "s", "1", {})]
    stale = replace(started, revision=7)
    with pytest.raises(StaleWriteError):
        store.commit(stale, [], fence=fence, now=NOW, evidence=seen, look=look_record(started.id))
    assert list(store.evidence(started.id)) == []
    assert list(store.looks(started.id)) == []


def test_a_fault_is_kept_once(store: Store, started: Release) -> None:
    fault = Fault(started.id, "i1", EngineFault.OOM, NOW, "CUDA out of memory")
    assert store.add_fault(fault)
    assert not store.add_fault(replace(fault, at=LATER, detail="again"))
    exited = replace(fault, kind=EngineFault.EXIT, at=LATER)
    assert store.add_fault(exited)
    assert store.faults(started.id) == (fault, exited)


def test_looks_are_numbered_and_come_back_as_they_were(
    store: Store, started: Release, fence: Lease
) -> None:
    odd = result("oom", Outcome.FAILED, value=0.25, details={"edge": [1, float("inf")]})
    records = [
        look_record(started.id, at=n, measurements=(Measurement("oom", odd, f"{n:064}"),))
        for n in range(120)
    ]
    now = started
    for record in records:
        now = store.commit(now, [], fence=fence, now=NOW, look=record)
    found = list(store.looks(started.id))
    assert found == [replace(record, seq=n) for n, record in enumerate(records, start=1)]
    assert list(store.looks("zz")) == []


def test_terms_are_kept_with_the_release(store: Store, started: Release, fence: Lease) -> None:
    assert store.gate_terms(started.id) is None
    end(store, started, fence)
    dependence = Dependence(phi=4 / 3, phi_upper=18.5, block_looks=8, engines=5, blocks=12)
    history = AaHistory(15.0, 3600.0, {(Signal.TTFT, 0.99): dependence})
    terms = GateTerms(
        (GateSpec(name="ttft_p99", max_regression="12.5%"), GateSpec(name="oom", max=0)),
        GateContext(1, 0.5, 15.0, 0.1, history=history),
        "no_harm",
    )
    again = store.create_release(release(), now=NOW, actor="ann", terms=terms)
    assert store.gate_terms(again.id) == terms


def test_a_gate_resumes_bit_for_bit(store: Store, started: Release, fence: Lease) -> None:
    state = {"e": 0.1 + 0.2, "tiny": 5e-324, "inf": float("inf"), "big": 2**70, "n": [[], {}]}
    record = GateRecord(started.id, "ttft_p99", NOW, state, result("ttft_p99", value=1 / 3))
    store.commit(started, [], fence=fence, now=NOW, gates=[record])
    assert store.gate_records(started.id) == (record,)
