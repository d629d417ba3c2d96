"""Parity of outputs, between simulated engines: real servers, the driver, and the gate."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from canaryctl.common.parity import Parity
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.parity import ParityRun, Reference, Side, batches, prompts
from canaryctl.runtimes.simulator.text import WORDS
from tests.support.gates import arm, judge, spec
from tests.support.simulated import ENGINE, SimulatedServer, simulated_spec

GRAPHS = {"mode": "FULL_AND_PIECEWISE", "capture_sizes": [1, 2, 4, 8, 16, 32]}
GATE = spec("output_parity", max_ratio="5%", max_nats=0.05)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    runtime = ENGINE.eager(simulated_spec(graph=GRAPHS))
    with SimulatedServer(runtime, tmp_path_factory.mktemp("eager") / "log") as server:
        yield server


def side(server: SimulatedServer) -> Side:
    limits = server.spec.limits
    model = ENGINE.model_name(server.spec)
    return Side(
        server.url, model, limits.max_num_seqs, limits.max_model_len, ENGINE.tells_token_ids
    )


def measured(canary: Side, reference: Reference) -> Parity:
    found = ParityRun(canary, reference).wait(60)
    assert isinstance(found, Parity), found
    return found


@pytest.fixture(scope="module")
def reference(eager: SimulatedServer) -> Reference:
    return Reference(side(eager), "r0-0 (eager)")


def judged(found: Parity) -> GateResult:
    return judge(GATE, 3, arm({}), parity=found)[1]


def test_equal_engines_agree(reference: Reference, tmp_path: Path) -> None:
    with SimulatedServer(simulated_spec(graph=GRAPHS), tmp_path / "log") as canary:
        found = measured(side(canary), reference)
        page = canary.page()
        for size in ("1", "2", "4", "8", "16", "32"):
            replayed = page.value("canaryctl_engine_steps_total", bucket=size, pure_decode="true")
            assert replayed > 0, f"no graph of {size} was replayed"
    assert (found.canary.diverged, found.canary.nats) == ({}, 0.0)
    assert found.canary.prompts == 160
    assert found.token_ids
    assert judged(found).outcome is Outcome.PASSED


def test_output_that_is_wrong_only_under_graphs_is_found(
    reference: Reference, tmp_path: Path
) -> None:
    runtime = simulated_spec({"fault": "wrong_output"}, graph=GRAPHS)
    with SimulatedServer(runtime, tmp_path / "log") as canary:
        found = measured(side(canary), reference)
        alone = replace(side(canary), most=1, longest=8)
        by_id = measured(alone, reference)
        by_text = measured(replace(alone, token_ids=False), reference)
    result = judged(found)
    assert result.outcome is Outcome.FAILED
    assert "160 of 160 prompts are answered otherwise than by r0-0 (eager)" in result.reason
    assert found.itself.diverged == {}
    assert (by_id.token_ids, by_text.token_ids) == (True, False)
    assert by_id.canary == by_text.canary
    where = r"prompt 1 in a batch of 1, token \d+: "
    word, words = r"' \w{4}'", r"'(?: \w{4}){4}'"
    assert re.fullmatch(f"{where}{word}, not {word}", by_text.example)
    assert re.fullmatch(rf"{where}id \d+, not id \d+; {words}, not {words}", by_id.example)


def test_a_reference_is_asked_the_same_once(eager: SimulatedServer, tmp_path: Path) -> None:
    def steps() -> float:
        return eager.page().value("canaryctl_engine_steps_total")

    kept = Reference(side(eager), "r0-0 (eager)")
    with SimulatedServer(simulated_spec(graph=GRAPHS), tmp_path / "log") as canary:
        short = replace(side(canary), most=1, longest=8)
        found = measured(short, kept)
        asked = steps()
        assert measured(short, kept) == found
        assert steps() == asked
        measured(replace(short, longest=4), kept)
        assert steps() > asked, "other questions have other answers"


def test_an_engine_that_does_not_answer_is_no_result(reference: Reference) -> None:
    nobody = Side("http://127.0.0.1:9", "qwen", most=1, longest=2, token_ids=True)
    found = ParityRun(nobody, reference).wait(60)
    assert isinstance(found, str)
    assert "http://127.0.0.1:9" in found


def test_simulated_tokens_are_told_by_their_ids_where_that_is_asked(eager: SimulatedServer) -> None:
    texts = eager.complete(3, "a story", logprobs=1).json()["choices"][0]
    answer = eager.complete(3, "a story", logprobs=1, return_tokens_as_token_ids=True)
    ids = answer.json()["choices"][0]
    assert ids["text"] == texts["text"] == "".join(texts["logprobs"]["tokens"])
    assert ids["logprobs"]["tokens"] == [
        f"token_id:{WORDS.index(word)}" for word in texts["logprobs"]["tokens"]
    ]
    assert ids["logprobs"]["token_logprobs"] == texts["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("most", [1, 3, 16, 32])
def test_batches_have_prompts_enough_and_every_size(most: int) -> None:
    sizes = batches(most)
    for size in (1, 2, 4, 8, 16, 32):
        assert sizes.count(size) * size >= 24 if size <= most else size not in sizes
    assert len(set(prompts(sum(sizes)))) == sum(sizes)
