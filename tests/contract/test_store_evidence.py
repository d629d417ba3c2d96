"""Evidence, faults, verdicts and the states of gates, as the store keeps them."""

from dataclasses import replace

import pytest

from canaryctl.controller.errors import InvariantError, SecondVerdictError
from canaryctl.controller.model import Fault, GateRecord, Lease, Release
from canaryctl.controller.store import Store
from canaryctl.gates.outcome import Outcome
from canaryctl.runtimes.engines.base import EngineFault
from tests.support.stored import LATER, NOW, result


def test_evidence_is_kept_word_for_word(store: Store, started: Release) -> None:
    lines = [f'metric{{le="{n}"}} {n} é\n' for n in range(450)]
    for number, line in enumerate(lines):
        store.add_evidence(
            started.id, NOW, "i1", "http://127.0.0.1/metrics", line, {"n": number, "x": [None]}
        )
    found = list(store.evidence(started.id))
    assert [entry.raw for entry in found] == lines
    assert [entry.values["n"] for entry in found] == list(range(450))
    assert (found[0].at, found[0].instance) == (NOW, "i1")
    store.add_evidence(started.id, NOW, "i1", "s", "", {"x": [float("inf"), -1e-300]})
    assert list(store.evidence(started.id))[-1].values == {"x": [float("inf"), -1e-300]}
    assert list(store.evidence("zz")) == []
    with pytest.raises(InvariantError):
        store.add_evidence("zz", NOW, "i1", "s", "", {})


def test_a_fault_is_kept_once(store: Store, started: Release) -> None:
    fault = Fault(started.id, "i1", EngineFault.OOM, NOW, "CUDA out of memory")
    assert store.add_fault(fault)
    assert not store.add_fault(replace(fault, at=LATER, detail="again"))
    exited = replace(fault, kind=EngineFault.EXIT, at=LATER)
    assert store.add_fault(exited)
    assert store.faults(started.id) == (fault, exited)


def test_a_look_has_one_verdict(store: Store, started: Release) -> None:
    failed = result(outcome=Outcome.FAILED, value=0.25, details={"edge": [1, float("inf")]})
    for _ in range(2):
        store.add_measurement(started.id, "oom", NOW, failed)
    with pytest.raises(SecondVerdictError, match=r"failed.*passed"):
        store.add_measurement(started.id, "oom", NOW, result())
    store.add_measurement(started.id, "exit", NOW, result("exit"))
    store.add_measurement(started.id, "oom", LATER, result())
    looks = store.measurements(started.id, "oom")
    assert [(look.at, look.result) for look in looks] == [(NOW, failed), (LATER, result())]
    assert [look.gate for look in store.measurements(started.id)] == ["exit", "oom", "oom"]


def test_a_gate_resumes_bit_for_bit(store: Store, started: Release, fence: Lease) -> None:
    state = {"e": 0.1 + 0.2, "tiny": 5e-324, "inf": float("inf"), "big": 2**70, "n": [[], {}]}
    record = GateRecord(started.id, "ttft_p99", NOW, state, result("ttft_p99", value=1 / 3))
    store.commit(started, [], fence=fence, now=NOW, gates=[record])
    assert store.gate_records(started.id) == (record,)
