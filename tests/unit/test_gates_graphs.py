"""How engine steps ran."""

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates import registry
from canaryctl.gates.base import Look
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import ArmWindow, Series, Value
from tests.support.gates import arm, context, judge, spec


def steps(**counts: float) -> dict[AnySignal, Value]:
    """``full``, ``piecewise``, ``prefill`` (eager, not pure decode, beyond the grid), or a reason
    of eager decode steps."""
    series: dict[tuple[tuple[str, str], ...], float] = {}
    for what, count in counts.items():
        mode = what.upper() if what in ("full", "piecewise") else "NONE"
        pure = "false" if what == "prefill" else "true"
        reason = {"full": "", "piecewise": "", "prefill": "beyond_grid"}.get(what, what)
        labels = (("bucket", "8"), ("mode", mode), ("pure_decode", pure), ("reason", reason))
        series[labels] = count
    return {Signal.STEPS: Series(series)}


@pytest.mark.parametrize("per_look", [65, 110])
def test_a_canary_that_is_all_eager_is_found_within_four_looks(per_look: float) -> None:
    """31 ms a step at batch 1 and 18 ms at batch 8 and more, over two seconds."""
    looks, result = judge(
        spec("graph_fallback", max_ratio="1%"), 20, arm(steps(downgraded=per_look))
    )
    assert result.outcome is Outcome.FAILED
    assert looks <= 4
    assert "downgraded by the engine" in result.reason


def test_steps_beyond_the_grid_are_shown_and_are_no_fallback() -> None:
    gate = spec("graph_fallback", max_ratio="1%")
    _, beyond = judge(gate, 500, arm(steps(full=60, beyond_grid=40, prefill=500)))
    assert beyond.outcome is Outcome.PASSED
    assert beyond.value == 0.0
    assert f"not counted: {500 * 40} steps beyond the grid, 40 % of pure decode" in beyond.reason
    _, eager = judge(gate, 100, arm(steps(full=60, beyond_grid=40, unknown=30, prefill=500)))
    assert eager.outcome is Outcome.FAILED
    assert eager.value == pytest.approx(30 / 90)  # steps with prefill are no part of it
    assert "for a reason that the engine does not give" in eager.reason
    assert eager.details["aside"]["beyond"] == pytest.approx(eager.samples * 40 / 90)


def test_one_burst_of_eager_steps_does_not_fail() -> None:
    gate = registry.build(spec("graph_fallback", max_ratio="1%"), context())
    state = gate.start()
    for k in range(400):
        burst = k % 60 == 7
        window = arm(steps(full=400 if burst else 500, beyond_grid=100 if burst else 0))
        state, result = gate.look(state, Look(2.0 * k, window, None))
    assert result.outcome is Outcome.PASSED  # 0.3 % in all


def test_an_engine_that_cannot_say_is_unknown() -> None:
    silent: list[dict[AnySignal, Value]] = [
        {},
        {Signal.STEPS: Series({(("mode", "NONE"),): 5.0})},
    ]
    for values in silent:
        _, result = judge(spec("graph_fallback", max_ratio="1%"), 1, arm(values))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "unknown" in result.reason


def test_steps_that_cannot_be_told_count_against_passing_and_not_for_failing() -> None:
    def mixed(eager_untold: float, graph_untold: float) -> ArmWindow:
        untold = ("pure_decode", "unknown")
        return arm(
            {
                Signal.STEPS: Series(
                    {
                        (("mode", "FULL"), ("pure_decode", "true")): 500.0,
                        (("mode", "NONE"), untold): eager_untold,
                        (("mode", "PIECEWISE"), untold): graph_untold,
                    }
                )
            }
        )

    gate = spec("graph_fallback", max_ratio="1%")
    assert judge(gate, 200, mixed(0, 30))[1].outcome is Outcome.PASSED
    doubtful = judge(gate, 200, mixed(30, 0))[1]
    assert doubtful.outcome is Outcome.INCONCLUSIVE
    assert doubtful.details["doubtful"] == 200 * 30
    cannot = judge(gate, 200, mixed(300, 300))[1]
    assert cannot.outcome is Outcome.INCONCLUSIVE
    assert "cannot tell whether they were pure decode" in cannot.reason
    assert cannot.valid_looks == 0


def test_no_decode_step_is_no_pass() -> None:
    _, result = judge(spec("graph_fallback", max_ratio="1%"), 50, arm(steps(prefill=500)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.samples == 0


def grid(mode: str, **counts: float) -> dict[AnySignal, Value]:
    return {**steps(**counts), Signal.GRID: Series({(("mode", mode),): 1.0})}


def test_graphs_that_are_off_have_no_fallback_to_judge() -> None:
    """Steps of an eager engine have no graph to miss; where graphs were asked for, they have."""
    gate = spec("graph_fallback", max_ratio="1%")
    _, off = judge(gate, 50, arm(grid("NONE", beyond_grid=500)))
    assert off.outcome is Outcome.INCONCLUSIVE
    assert "graphs are off" in off.reason
    assert judge(gate, 50, arm(grid("NONE", downgraded=500)))[1].outcome is Outcome.FAILED


# ----------------------------------------------------------- graph_hit

HIT = spec("graph_hit", min_ratio="99%")


def test_full_expected_and_piecewise_served_is_named() -> None:
    _, result = judge(HIT, 50, arm(grid("FULL_AND_PIECEWISE", full=100, piecewise=400)))
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("Graph hit 20 %:")
    assert "ran PIECEWISE where FULL was expected" in result.reason
    assert result.value == pytest.approx(0.2)
    assert result.limit == pytest.approx(0.99)
    assert result.details["aside"]["PIECEWISE 8"] > 0


def test_piecewise_is_a_hit_where_it_is_what_was_asked_for() -> None:
    served = arm(grid("PIECEWISE", piecewise=500))
    assert judge(HIT, 50, served)[1].outcome is Outcome.PASSED
    _, declared = judge(HIT, 50, served, declared={"graph_mode": "FULL_AND_PIECEWISE"})
    assert declared.outcome is Outcome.FAILED  # the engine lowered what the artifact asks for


def test_eager_steps_are_no_hits_and_steps_beyond_the_grid_are_not_asked() -> None:
    _, hit = judge(HIT, 50, arm(grid("FULL", full=500, beyond_grid=300)))
    assert hit.outcome is Outcome.PASSED
    assert "beyond the grid" in hit.reason
    _, eager = judge(HIT, 50, arm(grid("FULL", full=300, downgraded=200)))
    assert eager.outcome is Outcome.FAILED
    assert "downgraded by the engine" in eager.reason


def test_a_mode_that_nobody_tells_is_unknown() -> None:
    _, result = judge(HIT, 50, arm(steps(full=500)))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "unknown which mode is expected" in result.reason
    both = arm(grid("FULL", full=9), grid("PIECEWISE", piecewise=9))
    assert "FULL, PIECEWISE" in judge(HIT, 1, both)[1].reason


# --------------------------------------------------------- beyond_grid


def test_a_load_above_the_largest_size_is_a_gate_of_its_own() -> None:
    gate = spec("beyond_grid", max_ratio="5%")
    _, large = judge(gate, 50, arm(steps(full=300, beyond_grid=200, prefill=50)))
    assert large.outcome is Outcome.FAILED
    assert "pure-decode steps were larger than any graph; at most 5 % may" in large.reason
    assert "steps with prompts" in large.reason
    _, within = judge(gate, 50, arm(steps(full=500, downgraded=500, prefill=50)))
    assert within.outcome is Outcome.PASSED  # eager, and yet not beyond the grid
    assert within.value == 0.0


# ------------------------------------------------------- padding_ratio


def tokens(actual: float, padded: float, count: float = 500) -> dict[AnySignal, Value]:
    """Half of the tokens in steps of bucket 8, half in eager ones."""

    def split(number: float) -> Series:
        return Series({(("bucket", "0"),): actual / 2, (("bucket", "8"),): number - actual / 2})

    return {
        **steps(full=count),
        Signal.TOKENS_ACTUAL: split(actual),
        Signal.TOKENS_PADDED: split(padded),
    }


def test_padding_is_tokens_computed_over_tokens_scheduled() -> None:
    gate = spec("padding_ratio", max_ratio="120%")
    _, much = judge(gate, 100, arm(tokens(1000, 1500)))
    assert much.outcome is Outcome.FAILED
    assert much.value == pytest.approx(1.5)
    assert much.limit == pytest.approx(1.2)
    assert much.reason.startswith("Padding ratio 150 % (allowed 120 %)")
    assert much.details["by_bucket"] == {"8": pytest.approx(2.0)}
    _, little = judge(gate, 100, arm(tokens(1000, 1010)))
    assert little.outcome is Outcome.PASSED
    _, more = judge(
        spec("padding_ratio", max_regression="20%"),
        200,
        arm(tokens(1000, 1500)),
        arm(tokens(1000, 1050)),
    )
    assert more.outcome is Outcome.FAILED


def test_tokens_that_contradict_each_other_or_are_absent_are_unknown() -> None:
    gate = spec("padding_ratio", max_ratio="120%")
    for values in (tokens(1000, 900), steps(full=500), {}):
        _, result = judge(gate, 50, arm(values))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "unknown" in result.reason
