"""Who is driven for ``max_concurrency``, when, and that it counts once whatever happens."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.controller.model import Instance, Release
from canaryctl.controller.plan import make_plan
from canaryctl.controller.saturation import Driven, SaturationWatch
from canaryctl.controller.states import Phase
from canaryctl.controller.view import PoolView
from canaryctl.gates import registry
from canaryctl.gates.capacity import MaxConcurrencyGate
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import Missing, Scrape, Series, Value
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.saturation import Drive, output_tokens
from canaryctl.runtimes.spec import RuntimeSpec
from tests.support.gates import context, spec
from tests.support.judging import Judged, judged
from tests.support.releases import CANARY, PREVIOUS, T0, pool, release

NOBODY = "http://127.0.0.1:9"
ASKED = {"name": "max_concurrency", "max_regression": "5%", "confirm": "saturation"}
BOTH = {CANARY: pool(CANARY), PREVIOUS: pool(PREVIOUS)}
WARMING = release(Phase.WARMING)


def watch(tokens: int = 40_960, canary_tokens: int = 40_960) -> SaturationWatch:
    """Nobody listens anywhere, and every page is told from here."""
    runtime = RuntimeSpec.model_validate(
        {
            "engine": {"name": "simulated", "version": "0.25.1"},
            "model": {"id": "m"},
            "limits": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096},
        }
    )
    catalog: Any = SimpleNamespace(
        artifact=lambda _: SimpleNamespace(runtime=runtime), engine=lambda _: engine("simulated")
    )

    def read(instance: Instance, signals: Sequence[Signal], now: datetime) -> Scrape:
        held = canary_tokens if instance.pool == CANARY else tokens
        cache = Series({(("kv_cache_size_tokens", str(held)),): 1.0})
        values: dict[AnySignal, Value] = {s: Series({(): 0.0}) for s in signals}
        return Scrape(instance.id, now.timestamp(), {**values, Signal.CACHE_CONFIG: cache})

    return SaturationWatch(catalog, read, lambda _: NOBODY)


def gate() -> MaxConcurrencyGate:
    found = registry.build(spec(**ASKED), context())
    assert isinstance(found, MaxConcurrencyGate)
    return found


def look(watch: SaturationWatch, made: Release, pools: dict[str, PoolView]) -> Driven:
    return watch.look(made, make_plan(made), pools, gate(), T0)


def test_it_waits_for_both_arms_to_serve() -> None:
    waits = watch()
    for cold in (CANARY, PREVIOUS):
        assert look(waits, WARMING, {**BOTH, cold: pool(cold, ready=0)}) == Driven(pending=True)
        assert waits.driven is None


def test_an_engine_that_does_not_answer_misses_all_and_is_let_alone_then() -> None:
    driving = watch()
    assert look(driving, WARMING, BOTH).pending
    assert driving.driven == f"{CANARY}-0"
    until = time.monotonic() + 20
    while (found := look(driving, WARMING, BOTH)).pending:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert found.found == (0, 9)
    assert found.ended_at == T0.timestamp()
    assert driving.driven is None
    assert look(driving, WARMING, BOTH) == found


def test_a_canary_that_says_it_holds_less_is_not_driven() -> None:
    found = look(watch(canary_tokens=30_000), WARMING, BOTH)
    assert (found.pending, found.found) == (False, None)


def test_nothing_is_driven_once_there_is_traffic() -> None:
    late = watch()
    found = look(late, replace(WARMING, phase=Phase.PROGRESSING), BOTH)
    assert isinstance(found.found, Missing)
    assert "before it had traffic" in found.found.reason


def test_another_release_is_driven_anew() -> None:
    driving = watch()
    look(driving, WARMING, BOTH)
    other = replace(WARMING, id="r2")
    assert look(driving, other, {"r2": pool(CANARY), PREVIOUS: pool(PREVIOUS)}).pending
    driving.stop()
    assert driving.driven is None


@pytest.mark.parametrize(("together", "step_tokens"), [(1, 512), (8, 512), (200, 8192), (64, 64)])
def test_the_first_still_generates_when_the_last_was_computed(
    together: int, step_tokens: int
) -> None:
    drive = Drive(NOBODY, "m", together, tokens=4096, step_tokens=step_tokens)
    output = output_tokens(drive, factor=1)
    assert 0 < output < 4096
    prompts = (together - 1) * (4096 - output)
    # Those that generate already take a token each of every step.
    steps = prompts / max(1, step_tokens - together)
    assert steps <= output or output == 4095
    assert output_tokens(drive, factor=4) == min(4 * output, 4095)


# ------------------------------------------------- counted once, by the judge


@dataclass
class Told:
    """A watch that has ended: the canary held all."""

    found: tuple[int, int] | Missing | None
    pending: bool = False
    asked: int = 0
    ended_at: float | None = None
    driven: str | None = None

    def look(self, *_: object) -> Driven:
        self.asked += 1
        return Driven(self.pending, self.found, self.ended_at)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Judged]:
    with judged(tmp_path, ASKED, {"name": "error_rate", "max_ratio": "5%"}) as run:
        yield run


def driven_by(run: Judged, told: Told) -> None:
    run.judge._saturation = told  # type: ignore[assignment]


def misses(run: Judged) -> float:
    states = {r.gate: r.state for r in run.store.gate_records(run.release.id)}
    return float(states["max_concurrency"]["misses"]["n"])


def test_what_was_driven_is_counted_once_over_lost_commits_and_restarts(run: Judged) -> None:
    told = Told((400, 0))
    driven_by(run, told)
    run.tick()
    assert run.tick(commits=False).looked is not False
    run.tick()
    assert misses(run) == 400
    asked = told.asked
    run.tick()
    run.restart()
    again = Told((400, 0))
    driven_by(run, again)
    for _ in range(3):
        run.tick()
    assert (told.asked, again.asked) == (asked, 0)  # what is recorded is not measured again
    assert misses(run) == 400
    assert run.replay().difference is None


def test_a_controller_that_ends_before_the_first_look_begins_anew(run: Judged) -> None:
    driven_by(run, Told(None, pending=True))
    assert not run.tick().looked
    run.restart()
    driven_by(run, Told((396, 4)))
    for _ in range(3):
        run.tick()
    assert misses(run) == 400


def test_no_window_begins_before_driving_has_ended(run: Judged) -> None:
    """Where samples come from a store, the latest one may be of before."""
    told = Told(None, pending=True)
    driven_by(run, told)
    for _ in range(3):
        run.canary.answer(30.0, error=True)
        assert not run.tick().looked
    told.pending, told.found = False, (400, 0)
    told.ended_at = (T0.timestamp()) + run.at + 1.5 * 15.0
    run.tick()  # the sample of this moment is too early
    run.canary.answer(30.0, error=True)
    run.tick()
    run.canary.answer(0.1)
    found = run.tick()
    assert found.looked
    errors = next(r for r in found.verdict.results if r.name == "error_rate")
    assert errors.samples == 1
    assert errors.value == 0.0


def test_why_it_was_not_driven_is_told_and_promotes_nothing(run: Judged) -> None:
    driven_by(run, Told(Missing("the engine has 3 requests of others")))
    run.tick()
    found = run.tick()
    result = next(r for r in found.verdict.results if r.name == "max_concurrency")
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not found.verdict.promotable
    assert run.replay().difference is None
