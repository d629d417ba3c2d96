"""α is spent once a release, over all its gates and looks, whatever happens in between.

Two things make it so, and both are tested: the evidence of a release is one chain of states from
one start (no step, pause, restart, outage or lost commit begins it anew), and the bars that it is
held against are those of the recording and add up to α.
"""

import math
import random
import tempfile
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.controller.states import Phase
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.registry import build
from canaryctl.gates.samples import ArmWindow, Delta, Histogram, Value
from canaryctl.gates.spec import GateSpec
from tests.support.judging import Judged, judged

ALPHA, GATES = 0.01, 2
WHAT = ("look", "restart", "lost commit", "outage", "step", "pause", "reset", "other share")


def traffic(run: Judged, draws: random.Random) -> None:
    for _ in range(30):
        run.baseline.answer(draws.lognormvariate(-1.7, 0.45))
        run.canary.answer(draws.lognormvariate(-1.7, 0.45) * 1.5)


def bars(details: Mapping[str, Any]) -> set[float]:
    return {rule["log_fail_at"] for rule in details["rules"]}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(st.lists(st.sampled_from(WHAT), min_size=8, max_size=40), st.integers(0, 2**32))
def test_evidence_is_one_chain_and_its_bars_never_move(what: list[str], seed: int) -> None:
    draws = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, judged(Path(folder)) as run:
        for kind in what:
            traffic(run, draws)
            run.source.down = kind == "outage"
            if kind == "restart":
                run.restart()
            elif kind == "step":
                run.judged = replace(run.judged, step=1 - run.judged.step)
            elif kind == "pause":
                paused = run.judged.phase is Phase.PAUSED
                phase = Phase.PROGRESSING if paused else Phase.PAUSED
                run.judged = replace(run.judged, phase=phase)
            elif kind == "reset":
                run.canary.counts = [0] * len(run.canary.counts)
            run.tick(commits=kind != "lost commit")
        # What is stored follows, look by look, from nothing: no state was ever begun anew.
        assert run.replay().difference is None
        failed = set()
        for look in run.store.looks(run.release.id):
            for measurement in look.measurements:
                assert (
                    measurement.gate not in failed or measurement.result.outcome is Outcome.FAILED
                )
                if measurement.result.outcome is Outcome.FAILED:
                    failed.add(measurement.gate)
                if "rules" in measurement.result.details:
                    found = bars(measurement.result.details)
                    assert all(math.isclose(bar, math.log(GATES / ALPHA)) for bar in found)


def test_gates_share_alpha_so_that_together_they_spend_it_once() -> None:
    """Σ over gates and rules of exp(−bar) is α, for one gate as for many."""
    specs = [
        GateSpec(name="ttft", max_regression="10%"),
        GateSpec(name="tpot_p99", max_regression="10%", max_seconds="1s"),
        GateSpec(name="error_rate", max_ratio="1%", max_regression="50%"),
    ]
    for many in (specs[:1], specs):
        context = GateContext(len(many), 0.5, 15.0, 0.1)
        spent = 0.0
        for spec in many:
            gate = build(spec, context)
            _, result = gate.look(gate.start(), _look(0, random.Random(1)))
            spent += sum(math.exp(-rule["log_fail_at"]) for rule in result.details["rules"])
        assert math.isclose(spent, ALPHA)


_EDGES = [0.02 * 1.21 ** (k / 2) for k in range(45)]


def _look(at: int, draws: random.Random) -> Look:
    """Forty requests to each of two equal arms."""

    def arm(name: str) -> ArmWindow:
        counts = [0] * (len(_EDGES) + 1)
        for _ in range(40):
            counts[bisect_left(_EDGES, draws.lognormvariate(-1.7, 0.6))] += 1
        edges = (*_EDGES, math.inf)
        histogram = Histogram(tuple(zip(edges, accumulate(counts), strict=True)), 1.0)
        values: dict[AnySignal, Value] = {Signal.TTFT: histogram, Signal.TPOT: histogram}
        return ArmWindow((Delta(name, 15.0, values),), 1)

    return Look(at=15.0 * at, canary=arm("c"), baseline=arm("b"))
