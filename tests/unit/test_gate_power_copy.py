"""The accelerated copy of the latency gates gives the same floats as the gates."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate_power import forms, real
from benchmarks.gate_power.campaign import World, history
from benchmarks.gate_power.forms import EXACT, FORMS, UNKNOWN, Known
from benchmarks.gate_power.independent import NONE, Independent, Slowdown, Tokens
from benchmarks.gate_power.queues import Q60, QD, QK
from benchmarks.gate_power.ruler import Path, random_source
from canaryctl.common.metrics import Signal
from canaryctl.gates.history import QUANTILES, learn
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.rules.quantile_regression import Method

WORLDS: tuple[World, ...] = (Independent(), Q60, QK, QD, Tokens())
SLOWDOWNS = (NONE, Slowdown(1.33), Slowdown(1.1))


def release(world: World, seed: int, slowdown: Slowdown) -> Path:
    rng = random_source(seed)
    load = world.load(rng)
    return Path(world.ruler, world.arm(rng, load, 1, slowdown), world.arm(rng, load, 9))


def known_of(world: World) -> Iterator[Known]:
    learned = forms.learned(world.ruler, history(world, random_source(1)))
    yield learned
    yield replace(learned, methods=EXACT)
    yield UNKNOWN


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_log_e_value_is_the_gates_own(world: World) -> None:
    judged = 0
    for seed, known in enumerate(known_of(world)):
        path = release(world, seed, SLOWDOWNS[seed])
        expected = forms.evidence(path, known)
        for form in FORMS:
            mixed = forms.mixed(expected, FORMS[form])
            decision = forms.decide(path, expected, FORMS[form])
            outcomes = []
            for look, result in enumerate(
                real.results(real.latency_gate(form, known, path.ruler), path)
            ):
                outcomes.append(result.outcome)
                [rule] = result.details["rules"]
                assert rule["log_e_fail"] == mixed[look]
                for name in FORMS[form]:
                    failing, passing = (each[look] for each in expected[name])
                    said = rule["quantiles"][name]
                    assert said["log_e_fail"] == failing
                    assert (
                        np.isnan(passing)
                        if said["log_e_pass"] is None
                        else (said["log_e_pass"] == passing)
                    )
                judged += 1
                if result.outcome is Outcome.FAILED:
                    break
            assert (Outcome.FAILED in outcomes) == decision.failed
            assert (Outcome.PASSED in outcomes) == decision.passed
    assert judged > 700


@pytest.mark.parametrize("hours", [1, 2])
@pytest.mark.parametrize("world", WORLDS[:4], ids=lambda world: world.name)
def test_a_history_says_the_same_of_dependence(world: World, hours: int) -> None:
    engines = history(world, random_source(2), hours=hours)
    copied = forms.learned(world.ruler, engines)
    learned = learn(real.history_looks(engines, world.ruler))
    for name, p in QUANTILES.items():
        method = Method.of(learned, Signal.TTFT, p, 15.0)
        said = (method.block_looks or 0, method.phi, method.phi_upper, method.no_pass is None)
        assert tuple(copied.methods[name]) == said
    assert copied.past is not None
    assert learned.pasts[Signal.TTFT].cumulative == tuple(copied.past)


def test_a_history_with_too_few_exceedances_says_nothing() -> None:
    few = history(Independent(rate_per_engine=0.002), random_source(3))
    assert tuple(forms.learned(Independent().ruler, few).methods["p99"]) == tuple(
        UNKNOWN.methods["p99"]
    )
    learned = learn(real.history_looks(few, Independent().ruler))
    assert learned.dependence(Signal.TTFT, 0.99) is None
