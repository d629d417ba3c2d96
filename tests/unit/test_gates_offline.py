"""A file of samples is judged by the gates of releases: every line counts, or is refused."""

import bisect
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import Signal
from canaryctl.controller.samplefiles import load_history, load_samples
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.deltas import window
from canaryctl.gates.offline import Judged, judge, learn_history
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.registry import build
from canaryctl.gates.samplefile import SampleFileError, read_samples, sample_line
from canaryctl.gates.samples import Histogram, Scrape
from canaryctl.gates.spec import GateSpec

EDGES = [0.02 * 1.1 ** (k / 2) for k in range(120)]
SPEC = GateSpec(name="ttft_p90", max_regression="10%")


class Engine:
    """Counts as an engine does; its lines are read when asked for."""

    def __init__(self, arm: str, name: str, seed: int, slower: float = 1.0) -> None:
        self.arm, self.name, self.slower = arm, name, slower
        self.random = random.Random(seed)
        self.counts = [0] * (len(EDGES) + 1)

    def serve(self, requests: int) -> None:
        for _ in range(requests):
            latency_s = self.random.lognormvariate(-1.7, 0.5) * self.slower
            self.counts[bisect.bisect_left(EDGES, latency_s)] += 1

    def line(self, at: float, **more: Any) -> dict[str, Any]:
        labels = [*map(repr, EDGES), "+Inf"]
        total, buckets = 0, {}
        for label, count in zip(labels, self.counts, strict=True):
            total += count
            buckets[label] = total
        named = {"at": at, "arm": self.arm, "instance": self.name, "buckets": buckets}
        return {**named, **more}


def lines(
    slower: float = 1.0, looks: int = 60, requests: int = 30, baselines: int = 3
) -> list[dict[str, Any]]:
    engines = [Engine("baseline", f"b{n}", n) for n in range(baselines)]
    engines.append(Engine("canary", "c0", 99, slower))
    found = []
    for look in range(1, looks + 1):
        for engine in engines:
            engine.serve(requests)
            found.append(engine.line(15.0 * look))
    return found


def judged(found: Iterable[dict[str, Any]], spec: GateSpec = SPEC, **more: Any) -> Judged:
    return judge(read_samples("s", map(json.dumps, found)), spec, **more)


def test_it_says_what_the_gate_itself_says() -> None:
    """Look by look through the gate by hand: the same outcome at the same look."""
    found = lines(slower=1.6)
    gate = build(SPEC, GateContext(1, 0.5, 15.0, 0.25))
    state, before = gate.start(), None
    for at in sorted({line["at"] for line in found}):
        now = {
            line["instance"]: Scrape(
                line["instance"],
                at,
                {
                    Signal.TTFT: Histogram(
                        tuple((float(e), c) for e, c in line["buckets"].items()), 0.0
                    )
                },
            )
            for line in found
            if line["at"] == at
        }
        if before is not None:
            canary, baseline = (
                window(before, now, [n for n in sorted(now) if n[0] == first]) for first in "cb"
            )
            state, result = gate.look(state, Look(at, canary, baseline))
            if result.outcome is Outcome.FAILED:
                break
        before = now
    done = judged(found)
    assert (done.decided_at, done.result) == (at, result)
    document = done.as_document()
    assert document["outcome"] == "failed"
    assert document["log_e_fail"] >= math.log(100)
    assert document["canary_requests"] == result.samples < 59 * 30


def test_equal_arms_do_not_fail_and_no_history_is_said() -> None:
    done = judged(lines())
    assert (done.result.outcome, done.decided_at) == (Outcome.INCONCLUSIVE, None)
    assert done.as_document()["canary_requests"] == 59 * 30
    assert done.as_document()["log_e_pass"] is None
    assert "no A/A history" in "; ".join(done.notes)


def test_alpha_is_shared_among_the_gates() -> None:
    alone, shared = judged(lines(slower=1.6)), judged(lines(slower=1.6), gates_total=100)
    assert alone.decided_at is not None
    assert shared.decided_at is None or shared.decided_at > alone.decided_at


def test_with_a_history_equal_arms_pass() -> None:
    engines = [Engine("baseline", f"h{n}", n) for n in range(6)]
    past = []
    for look in range(242):
        for engine in engines:
            engine.serve(30)
            past.append(engine.line(15.0 * look))
    history = learn_history(read_samples("h", map(json.dumps, past)), Signal.TTFT)
    assert history.lacks is None
    done = judged(lines(looks=200), history=history)
    assert done.result.outcome is Outcome.PASSED
    assert done.decided_at is not None
    assert done.as_document()["log_e_pass"] >= math.log(20)
    # What came after the decision is not counted as if it had been needed.
    assert done.as_document()["canary_requests"] < 199 * 30
    assert "φ" in "; ".join(done.notes)


def test_the_order_of_lines_does_not_matter() -> None:
    found = lines(slower=1.6)
    shuffled = found.copy()
    random.Random(3).shuffle(shuffled)
    assert judged(shuffled).as_document() == judged(found).as_document()


def test_scrapes_a_little_apart_are_one_look() -> None:
    exact, apart = lines(slower=1.6), lines(slower=1.6)
    for number, line in enumerate(apart):
        line["at"] += (number * 7 % 5) / 2
    one, other = judged(exact), judged(apart)
    assert (one.looks, one.result.samples) == (other.looks, other.result.samples)
    assert one.looks == 59


def test_a_missing_line_loses_no_count() -> None:
    found = lines()
    gaps = [line for line in found if not (line["arm"] == "canary" and 300 < line["at"] < 400)]
    assert judged(gaps).result.samples == judged(found).result.samples


def test_an_instance_that_comes_late_begins_with_its_first_line() -> None:
    found = lines()
    late = Engine("canary", "c1", 5)
    late.serve(100_000)  # before anybody looked
    for look in range(40, 61):
        late.serve(30)
        found.append(late.line(15.0 * look))
    assert judged(found).result.samples == 59 * 30 + 20 * 30


def test_a_counter_that_falls_is_a_restart_and_no_window() -> None:
    engines = [Engine("baseline", "b0", 1), Engine("canary", "c0", 2)]
    found = []
    for look in range(1, 11):
        for engine in engines:
            if look == 6 and engine.arm == "canary":
                engine.counts = [0] * len(engine.counts)
            engine.serve(30)
            found.append(engine.line(15.0 * look))
    assert judged(found).result.samples == 8 * 30


def test_instances_with_other_edges_are_told() -> None:
    found = lines()
    for line in found:
        if line["instance"] == "b1":
            line["buckets"] = {"1": 0, "+Inf": line["buckets"]["+Inf"]}
    done = judged(found)
    assert done.result.outcome is Outcome.INCONCLUSIVE
    assert "different bucket edges" in done.result.reason
    assert done.result.samples == 0


def test_one_arm_alone_decides_nothing() -> None:
    for arm in ("canary", "baseline"):
        done = judged([line for line in lines(slower=3) if line["arm"] != arm])
        assert (done.result.outcome, done.decided_at) == (Outcome.INCONCLUSIVE, None)
        assert f"the file has no line of the {arm}" in done.notes
    [first, *_] = lines()
    assert "takes two" in judged([first]).result.reason


def test_strata_are_counted_apart_and_added_up() -> None:
    found = lines(slower=1.6, baselines=2)
    stratum = {"b0": "short", "b1": 2, "c0": "short"}
    parts = [
        {**line, "instance": line["instance"][0], "stratum": stratum[line["instance"]]}
        for line in found
    ]
    whole, strata = judged(found), judged(parts)
    assert strata.result == whole.result
    assert "the strata of an arm are added up" in strata.notes


def test_unequal_load_is_said() -> None:
    heavy = Engine("baseline", "b0", 1)
    light = Engine("canary", "c0", 2)
    found = []
    for look in range(1, 9):
        heavy.serve(90)
        light.serve(10)
        found += [heavy.line(15.0 * look), light.line(15.0 * look)]
    assert any("only at equal load" in note for note in judged(found).notes)


def test_lines_of_another_signal_are_refused_or_left_to_their_own_gate() -> None:
    tpot = [{**line, "signal": "tpot"} for line in lines(looks=3)]
    with pytest.raises(InputError, match="judged by samples of ttft; found only tpot"):
        judged(tpot)
    both = [*tpot, *({**line, "signal": "ttft"} for line in lines(looks=3))]
    assert judged(both).result.samples == 60
    with pytest.raises(SampleFileError, match="names its signal"):
        judged([*tpot, *lines(looks=3)])


GOOD = {"at": 1.0, "arm": "canary", "instance": "c", "buckets": {"1": 1, "+Inf": 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[1]", "expected a JSON object"),
        ("NaN", "NaN"),
        ('{"at": 1}', "arm, instance, buckets is missing"),
        ({**GOOD, "arm": "stable"}, "'stable', expected baseline or canary"),
        ({**GOOD, "at": "1"}, "at: found '1'"),
        ({**GOOD, "at": True}, "at: found True"),
        ({**GOOD, "instance": ""}, "instance: found ''"),
        ({**GOOD, "more": 1}, "the key 'more'"),
        ({**GOOD, "signal": "tfft"}, "signal: found 'tfft'"),
        ({**GOOD, "signal": []}, r"signal: found \[\]"),
        ({**GOOD, "stratum": {}}, "stratum: found {}"),
        ({**GOOD, "buckets": {}}, "buckets: found {}"),
        ({**GOOD, "buckets": {"1": 1}}, "no \\+Inf"),
        ({**GOOD, "buckets": {"1": 3, "+Inf": 2}}, "never fall"),
        ({**GOOD, "buckets": {"1": -1, "+Inf": 2}}, "expected 0 or more"),
        ({**GOOD, "buckets": {"1": 0.5, "+Inf": 2}}, "0.5 at 1, expected a whole number"),
        ({**GOOD, "buckets": {"x": 1, "+Inf": 2}}, "the edge 'x'"),
        ({**GOOD, "buckets": {"0.1": 1, "0.10": 1, "+Inf": 2}}, "the edge 0.1 comes twice"),
        ('{"at": 1, "at": 2}', "the key 'at' comes twice"),
        (GOOD, "canary c at 1 is on line 1 already"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_by_its_number(text: Any, said: str) -> None:
    written = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(SampleFileError, match=rf"s: line 3: .*{said}"):
        read_samples("s", [json.dumps(GOOD), "", written])


def test_every_bad_line_is_told() -> None:
    with pytest.raises(SampleFileError) as caught:
        read_samples("s", ["x"] * 14)
    told = str(caught.value)
    assert told.count("no JSON") == 10
    assert told.endswith("and 4 more")
    with pytest.raises(SampleFileError, match="found no line"):
        read_samples("s", ["", "  "])


def test_a_written_line_reads_back() -> None:
    histogram = Histogram(((0.1 + 0.2, 1), (1.0, 3), (math.inf, 4)), 2.5)
    line = sample_line(1.5, "baseline", "i", Signal.ITL, histogram)
    [sample] = read_samples("s", [line])
    assert (sample.at, sample.instance, sample.signal) == (1.5, "i", Signal.ITL)
    assert sample.histogram == histogram


@pytest.mark.parametrize("name", ["error_rate", "ttft_p42", "oom"])
def test_a_gate_that_no_histogram_answers_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected one on a histogram: ttft"):
        judged([GOOD], GateSpec(name=name, max_regression="10%"))


def test_limits_are_checked_as_an_artifacts_are() -> None:
    with pytest.raises(InputError, match="margin"):
        judged([GOOD], GateSpec(name="ttft", max_regression="40%", margin="20%"))


def test_a_history_is_of_baselines_and_says_of_what(tmp_path: Path) -> None:
    canary = tmp_path / "canary.jsonl"
    canary.write_text(json.dumps(GOOD))
    with pytest.raises(InputError, match="line 1: found the arm canary"):
        load_history(canary, Signal.TTFT)
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join(json.dumps(x) for x in lines(looks=2) if x["arm"] == "baseline"))
    with pytest.raises(InputError, match="line 1 names no signal"):
        load_history(plain)
    assert load_history(plain, Signal.TTFT).lacks is not None
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps(load_history(plain, Signal.TTFT).as_document()))
    assert load_history(summary) == load_history(plain, Signal.TTFT)
    summary.write_text("{}")
    with pytest.raises(InputError, match=r"summary\.json: .*expected the keys"):
        load_history(summary)
    summary.write_text("{")
    with pytest.raises(InputError, match="no JSON"):
        load_history(summary)
    with pytest.raises(InputError, match="cannot be read"):
        load_samples(tmp_path / "none.jsonl")
    plain.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        load_samples(plain)
