"""Who is compared with whom for ``output_parity``, and when."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from canaryctl.controller.model import Release, ReleaseKind
from canaryctl.controller.parity import ParityWatch, Standing
from canaryctl.controller.plan import make_plan
from canaryctl.controller.states import Phase
from canaryctl.controller.view import PoolView
from canaryctl.gates.samples import Missing
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.spec import RuntimeSpec
from tests.support.releases import CANARY, PREVIOUS, pool, release

NOBODY = "http://127.0.0.1:9"


def runtime(**model: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(
        {"engine": {"name": "simulated", "version": "0.25.1"}, "model": {"id": "m", **model}}
    )


def watch(stable: RuntimeSpec | None = None) -> ParityWatch:
    """The stable runtime's digest is of a's; nobody listens anywhere."""
    artifacts = {"a": stable or runtime(), "b": runtime()}
    catalog: Any = SimpleNamespace(
        artifact=lambda digest: SimpleNamespace(runtime=artifacts[digest[7]]),
        engine=lambda _: engine("simulated"),
    )
    return ParityWatch(catalog, lambda _: NOBODY)


def look(watch: ParityWatch, made: Release, **pools: PoolView) -> Standing:
    return watch.look(made, make_plan(made), pools)


WARMING = release(Phase.WARMING)
BOTH = {CANARY: pool(CANARY), PREVIOUS: pool(PREVIOUS)}


def test_it_waits_for_a_canary_that_serves() -> None:
    cold = watch()
    assert look(cold, WARMING, r0=pool(PREVIOUS), r1=pool(CANARY, ready=0)) == Standing(True)


def test_a_baseline_that_is_started_for_the_release_is_waited_for() -> None:
    first = replace(WARMING, kind=ReleaseKind.FIRST, previous_pool=None, previous_digest=None)
    eager = watch()
    assert look(eager, first, r1=pool(CANARY)) == Standing(pending=True)
    both = {CANARY: pool(CANARY), first.eager_pool: pool(first.eager_pool)}
    standing = ended(lambda: eager.look(first, make_plan(first), both))
    assert isinstance(standing.found, Missing)
    assert NOBODY in standing.found.reason, "now it is asked"


def ended(look: Callable[[], Standing]) -> Standing:
    until = time.monotonic() + 20
    while (standing := look()).pending:
        assert time.monotonic() < until
        time.sleep(0.01)
    return standing


def test_engines_that_do_not_answer_are_told_once() -> None:
    asked = watch()
    standing = ended(lambda: look(asked, WARMING, **BOTH))
    assert isinstance(standing.found, Missing)
    assert NOBODY in standing.found.reason
    assert look(asked, replace(WARMING, phase=Phase.PROGRESSING), **BOTH) == standing


def test_another_model_is_no_reference() -> None:
    standing = look(watch(runtime(revision="other")), WARMING, **BOTH)
    assert not standing.pending
    assert isinstance(standing.found, Missing)
    assert "r0-0 runs another model" in standing.found.reason
    assert "graph.mode NONE first" in standing.found.reason


def test_nothing_is_asked_once_there_is_traffic() -> None:
    standing = look(watch(), replace(WARMING, phase=Phase.PROGRESSING), **BOTH)
    assert isinstance(standing.found, Missing)
    assert "before the canary had traffic" in standing.found.reason
