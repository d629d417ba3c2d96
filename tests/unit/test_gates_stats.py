"""The formulas of docs/gates.md against its vectors, its table and themselves."""

import json
import math
from collections.abc import Callable
from operator import mul

import pytest

from canaryctl.gates.stats import bernoulli, block, edges, lr, mixture, planner
from canaryctl.gates.stats.counts import Counts

VECTORS = [Counts(0, 3, 30, 270), Counts(2, 2, 31, 268), Counts(1, 4, 29, 275)]


def _after_vectors(update: object, size: int) -> float:
    logs = [0.0] * size
    for counts in VECTORS:
        logs = update(logs, counts)  # type: ignore[operator]
    return mixture.log_mean_exp(logs)


def test_published_vectors() -> None:
    assert round(_after_vectors(lambda x, c: lr.update(x, lr.FAIL_GRID, c), 8), 6) == 0.734908
    assert round(_after_vectors(lambda x, c: lr.update(x, lr.PASS_GRID, c), 8), 6) == -1.262779
    assert round(_after_vectors(block.update_fail, 8), 6) == 0.451183
    assert round(_after_vectors(block.update_pass, 8), 6) == -0.173057


def test_phi_divides_the_evidence_and_below_one_is_refused() -> None:
    exact = lr.update([0.0] * 8, lr.FAIL_GRID, VECTORS[1])
    tempered = lr.update([0.0] * 8, lr.FAIL_GRID, VECTORS[1], phi=4)
    assert tempered == pytest.approx([x / 4 for x in exact])
    with pytest.raises(ValueError, match="φ"):
        lr.update([0.0] * 8, lr.FAIL_GRID, VECTORS[1], phi=0.5)
    with pytest.raises(ValueError, match="φ"):
        bernoulli.update([0.0], (2.0,), 0.1, k=0, n=1, phi=0.5)


@pytest.mark.parametrize("counts", [Counts(0, 0, 5, 5), Counts(3, 1, 0, 5), Counts(3, 1, 5, 0)])
def test_a_look_that_compares_nothing_changes_nothing(counts: Counts) -> None:
    logs = [0.25 * k for k in range(8)]
    assert lr.update(logs, lr.FAIL_GRID, counts) == logs
    assert block.update_fail(logs, counts) == logs
    assert block.update_pass(logs, counts) == logs


def _choose_binomial(n: int, p: float) -> list[float]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("rho0", [1.0, 1.5])
def test_factors_have_expectation_one_at_the_null(rho0: float) -> None:
    """Given the total, binomial counts: both sides of both processes, for every ρ0."""
    n_c, n_b, m = 30, 270, 7
    at_null = rho0 * n_c / (rho0 * n_c + n_b)
    chances = _choose_binomial(m, at_null)
    updates: list[Callable[[Counts], list[float]]] = [
        lambda c: lr.update([0.0] * 8, lr.FAIL_GRID, c, rho0=rho0),
        lambda c: lr.update([0.0] * 8, lr.PASS_GRID, c, rho0=rho0),
        lambda c: block.update_fail([0.0] * 8, c, rho0=rho0),
        lambda c: block.update_pass([0.0] * 8, c, rho0=rho0),
    ]
    for update in updates:
        outcomes = [update(Counts(k, m - k, n_c, n_b)) for k in range(m + 1)]
        for index in range(8):
            factors = [math.exp(logs[index]) for logs in outcomes]
            assert sum(map(mul, chances, factors)) == pytest.approx(1.0)


@pytest.mark.parametrize(("n_c", "n_b"), [(1, 9), (4, 4), (6, 2)])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_no_factor_grows_under_any_null(n_c: int, n_b: int, rate: float) -> None:
    """One step, all outcomes: n_C and n_B independent observations, the canary's rate at most
    (FAIL) or at least (PASS) the baseline's. Whatever the rate is, it need not be known."""
    for ratio in (0.0, 0.5, 0.9, 1.0):
        fail_null, pass_null = (
            _joint(n_c, rate * ratio, n_b, rate),
            _joint(n_c, rate, n_b, rate * ratio),
        )
        for index in range(8):
            for update, grid_or_none, null in (
                (lr.update, lr.FAIL_GRID, fail_null),
                (lr.update, lr.PASS_GRID, pass_null),
                (block.update_fail, None, fail_null),
                (block.update_pass, None, pass_null),
            ):
                total = 0.0
                for counts, chance in null:
                    given = (grid_or_none, counts) if grid_or_none else (counts,)
                    total += chance * math.exp(update([0.0] * 8, *given)[index])
                assert total <= 1 + 1e-12
    worse = _joint(n_c, min(1.0, rate * 3), n_b, rate)
    grown = sum(p * math.exp(block.update_fail([0.0] * 8, c)[3]) for c, p in worse)
    assert grown > 1  # what is worse does grow


def _joint(n_c: int, rate_c: float, n_b: int, rate_b: float) -> list[tuple[Counts, float]]:
    canary, baseline = _choose_binomial(n_c, rate_c), _choose_binomial(n_b, rate_b)
    return [
        (Counts(k_c, k_b, n_c, n_b), p_c * p_b)
        for k_c, p_c in enumerate(canary)
        for k_b, p_b in enumerate(baseline)
    ]


def test_block_floors() -> None:
    def blocks_until(share: float, log_bar: float) -> int:
        logs, blocks = [0.0] * 8, 0
        while mixture.log_e_late(logs, []) < log_bar:
            logs = block.update_fail(logs, Counts(5, 0, 100 * share, 100 * (1 - share)))
            blocks += 1
        return blocks

    assert blocks_until(0.5, math.log(100)) == 11
    assert blocks_until(0.1, math.log(100)) == 4


def test_bernoulli_passes_without_an_event_and_fails_with_many() -> None:
    logs, n = [0.0] * len(bernoulli.PASS_ODDS), 0
    while mixture.log_mean_exp(logs) < math.log(20):
        logs = bernoulli.update(logs, bernoulli.PASS_ODDS, 0.01, k=0, n=1)
        n += 1
    assert 298 <= n <= 380  # ln 20 / −ln(1 − 1 %) = 298 is the least that any test can do
    failing = bernoulli.update(
        [0.0] * len(bernoulli.FAIL_ODDS), bernoulli.FAIL_ODDS, 0.01, k=6, n=6
    )
    assert mixture.log_mean_exp(failing) > math.log(100)


@pytest.mark.parametrize("limit", [0.0, 1.0, -0.1])
def test_bernoulli_refuses_a_limit_that_is_no_share(limit: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        bernoulli.thetas(limit, (2.0,))


def test_late_starts_are_one_before_they_begin_and_mix_to_one() -> None:
    assert mixture.log_e_late([0.0] * 8, []) == pytest.approx(0.0)
    starts = mixture.take_starts([], [-3.0, -1.0], 299.9)
    assert starts == []
    starts = mixture.take_starts(starts, [-3.0, -1.0], 611.0)
    assert starts == [[-3.0, -1.0], [-3.0, -1.0]]
    late = mixture.take_starts(starts, [9.0, 9.0], 1e9)
    assert len(late) == mixture.STARTS
    assert late[:2] == starts
    # long evidence against, then the same evidence for: only the late start can see it
    logs = [-40.0, -40.0]
    starts = mixture.take_starts([], logs, 300.0)
    logs = [log + 20 for log in logs]
    assert mixture.log_e_late(logs, starts) == pytest.approx(math.log(0.5 / 11) + 20, abs=1e-6)


# ---------------------------------------------------------------- edges

ALIGNED = [0.02 * 1.1 ** (k / 2) for k in range(190)]


def _cumulative(counts: list[int]) -> list[int]:
    total, out = 0, []
    for count in counts:
        total += count
        out.append(total)
    return out


def test_rounded_edges_keep_the_tolerance() -> None:
    """1.1 × an edge printed with seven digits lies a hair above the edge that is meant."""
    rounded = [*(float(f"{e:.7g}") for e in ALIGNED), math.inf]
    counts = [0] * 191
    counts[60], counts[80] = 985, 15
    for i in range(40, 60):
        question = edges.choose(rounded, _shifted(counts, i), p=0.99, r=0.1, m=0.331)
        assert question is not None
        assert question.effective_tolerance == pytest.approx(0.1, abs=1e-4)
        assert question.j_fail is not None
        assert rounded[question.j_pass] / rounded[question.i] == pytest.approx(1.331, abs=1e-4)


@pytest.mark.parametrize(("m", "edge"), [(0.21, 1.21), (0.33, 1.331), (0.46, 1.4641), (0.3, 1.269)])
def test_a_margin_in_whole_per_cents_finds_its_edge(m: float, edge: float) -> None:
    grid = [*ALIGNED, math.inf]
    counts = [0] * 191
    counts[60], counts[80] = 985, 15
    question = edges.choose(grid, _shifted(counts, 50), p=0.99, r=0.1, m=m)
    assert question is not None
    assert grid[question.j_pass] / grid[question.i] == pytest.approx(edge, rel=1e-3)


def _shifted(counts: list[int], by: int) -> list[int]:
    return _cumulative(counts[60 - by :] + [0] * (60 - by))


def test_i_is_the_largest_edge_with_enough_beyond_it() -> None:
    grid = [1.0, 2.0, 3.0, 4.0, math.inf]
    question = edges.choose(grid, [50, 90, 99, 100, 100], p=0.9, r=0.1, m=0.4)
    assert question is not None
    assert (question.i, question.j_fail, question.j_pass) == (1, 2, 1)
    assert question.effective_tolerance == pytest.approx(0.5)
    question = edges.choose(grid, [50, 89, 100, 100, 100], p=0.99, r=0.1, m=0.4)
    assert question is not None
    assert question.i == 1


def test_questions_that_the_edges_cannot_ask() -> None:
    grid = [0.01, 0.025, math.inf]
    assert edges.choose(grid, [100, 100, 100], p=0.99, r=0.1, m=0.3) is None
    beyond = edges.choose(grid, [0, 10, 100], p=0.9, r=0.1, m=0.3)
    assert beyond is not None
    assert beyond.j_fail is None
    assert edges.choose([math.inf], [100], p=0.9, r=0.1, m=0.3) is None
    assert edges.choose([0.0, math.inf], [0, 100], p=0.9, r=0.1, m=0.3) is None


def test_quantile_for_people() -> None:
    grid = [1.0, 2.0, 4.0, math.inf]
    assert edges.quantile(grid, [0, 50, 100, 100], 0.75) == pytest.approx(3.0)
    assert edges.quantile(grid, [10, 10, 10, 100], 0.5) == 4.0  # beyond the last finite edge
    assert edges.quantile(grid, [0, 0, 0, 0], 0.5) is None
    assert edges.quantile([math.inf], [5], 0.5) is None


def test_share_above_never_overstates() -> None:
    grid = [1.0, 2.0, 4.0, math.inf]
    assert edges.share_above(grid, [40, 70, 90, 100], 1.5) == pytest.approx(0.3)
    assert edges.share_above(grid, [40, 70, 90, 100], 2.0) == pytest.approx(0.3)
    assert edges.share_above(grid, [40, 70, 90, 100], 5.0) == 0.0


def test_the_past_is_half_an_hour_long() -> None:
    history: list[edges.Chunk] = []
    for minute in range(60):
        history = edges.remember(history, minute * 60.0, [1, 2])
    assert len(history) <= 7
    total = edges.recall(history)
    assert 26 <= total[0] <= 31
    assert total[1] == 2 * total[0]
    assert edges.recall([]) == []
    assert edges.recall(json.loads(json.dumps(history))) == total


# -------------------------------------------------------------- planner


@pytest.mark.parametrize(
    ("p", "delta", "n50", "n90"),
    [(0.99, 0.2, 28e3, 62e3), (0.99, 0.5, 1.7e3, 3.8e3), (0.95, 0.5, 250, 570)],
)
def test_requests_needed_agrees_with_the_published_table(
    p: float, delta: float, n50: float, n90: float
) -> None:
    """π = 0.1, r = 10 %, on the mixture of log-normals that the table was made with."""

    def beyond(x: float) -> float:
        parts = ((0.93, 0.18, 0.45), (0.06, 0.5, 0.5), (0.01, 1.2, 0.7))
        return sum(
            w * 0.5 * math.erfc((math.log(x) - math.log(m)) / s / math.sqrt(2)) for w, m, s in parts
        )

    low, high = 0.01, 50.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 1 - p else (low, middle)
    rho = beyond(low * 1.1 / (1 + delta)) / beyond(low)
    climb = math.log(100) + planner.MIXING
    for z, published in ((planner.Z50, n50), (planner.Z90, n90)):
        needed = planner.requests_needed(rho=rho, share=0.1, s=1 - p, climb=climb, z=z)
        assert needed == pytest.approx(published, rel=0.25)


def test_planner_says_never_rather_than_a_number() -> None:
    assert planner.requests_needed(rho=1.0, share=0.1, s=0.01, climb=5, z=0) is None
    assert planner.requests_needed(rho=2.0, share=0.1, s=0.0, climb=5, z=0) is None
    assert planner.requests_needed(rho=2.0, share=1.0, s=0.1, climb=5, z=0) is None
    assert planner.bernoulli_needed(theta=0.01, s0=0.01, climb=5, z=0) is None
    assert planner.blocks_needed(rho=1.0, share=0.5, baseline_events=5, bar=5, z=0) is None
    assert planner.blocks_needed(rho=2.0, share=0.5, baseline_events=0, bar=5, z=0) is None
    assert planner.blocks_needed(rho=1.0001, share=0.5, baseline_events=1, bar=5, z=1.28) is None


def test_blocks_needed_knows_the_floor_and_large_blocks() -> None:
    assert (
        planner.blocks_needed(rho=1e6, share=0.5, baseline_events=9, bar=math.log(100), z=0) == 11
    )
    few = planner.blocks_needed(rho=2, share=0.5, baseline_events=2, bar=5, z=1.28)
    many = planner.blocks_needed(rho=2, share=0.5, baseline_events=2000, bar=5, z=1.28)
    assert few is not None
    assert many is not None
    assert few > many


# -------------------------------------------------------- interpolation


def _survival(x: float) -> float:
    """Of a log-normal latency around 50 ms."""
    return 0.5 * math.erfc(math.log(x / 0.05) / 0.45 / math.sqrt(2))


def _counts(grid: list[float], total: int = 100_000) -> list[int]:
    return [round(total * (1 - _survival(e))) for e in grid[:-1]] + [total]


@pytest.mark.parametrize("step", [1.05, 1.3, 2.0, 2.5])
def test_an_interpolated_rate_ratio_of_a_smooth_latency_is_never_too_small(step: float) -> None:
    grid = [*(0.02 * step**k for k in range(round(math.log(8) / math.log(step)))), math.inf]
    counts = _counts(grid)
    for i in range(1, len(grid) - 2):
        for factor in (f for f in (1.02, 1.1, 1.33) if grid[i] / f >= grid[0]):
            found = edges.rate_ratio(grid, counts, i, factor)
            truth = _survival(grid[i] / factor) / _survival(grid[i])
            assert found is not None
            assert found > truth * 0.98
            if step < 1.1:
                assert found == pytest.approx(truth, rel=0.05)


def test_a_rate_ratio_at_an_edge_is_counted() -> None:
    grid = [1.0, 2.0, 4.0, math.inf]
    assert edges.rate_ratio(grid, [10, 60, 90, 100], 1, 2.0) == pytest.approx(90 / 40)
    assert edges.rate_ratio(grid, [10, 60, 90, 100], 2, 4.0) == pytest.approx(90 / 10)


def test_a_rate_ratio_that_the_buckets_do_not_show_is_none() -> None:
    grid = [1.0, 2.0, 4.0, math.inf]
    assert edges.rate_ratio(grid, [10, 60, 90, 100], 0, 1.1) is None  # nothing below
    assert edges.rate_ratio(grid, [10, 60, 90, 100], 2, 1.1) is None  # the next one is endless
    assert edges.rate_ratio(grid, [10, 60, 100, 100], 1, 1.1) is None  # nothing above e_i+1
    assert edges.rate_ratio(grid, [10, 100, 100, 100], 1, 1.1) is None
    assert edges.rate_ratio([0.0, 2.0, 4.0, math.inf], [0, 60, 90, 100], 1, 1.1) is None
