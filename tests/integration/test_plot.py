"""The picture of a release says what its looks say: read back as XML, point by point."""

import math
import random
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.errors import InputError
from canaryctl.controller.model import Measurement
from canaryctl.controller.plot import plot
from canaryctl.controller.svg import Line, Panel, Style, render, runs, ticks
from canaryctl.gates.outcome import Outcome
from tests.support.judging import Judged, judged
from tests.support.stored import look_record, result

SVG = "{http://www.w3.org/2000/svg}"
TAGS = ("svg", "title", "desc", "rect", "g", "text", "line", "polyline", "circle", "clipPath")


def traffic(run: Judged, draws: random.Random, slower: float) -> None:
    for _ in range(60):
        run.baseline.answer(draws.lognormvariate(-1.7, 0.45))
        run.canary.answer(draws.lognormvariate(-1.7, 0.45) * slower)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Judged, str]:
    """A release whose canary is slow, and was not read for two looks."""
    draws = random.Random(4)
    gates = (
        {"name": "ttft_p90", "max_regression": "21%"},
        {"name": "error_rate", "max_ratio": "5%"},
    )
    with judged(tmp_path_factory.mktemp("plot"), *gates) as run:
        for number in range(200):
            traffic(run, draws, 2.0)
            run.source.down = number in (30, 31)
            if run.tick().verdict.outcome is Outcome.FAILED:
                return run, plot("r1", run.store.looks("r1"))
    raise AssertionError("it never failed")


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture.encode())  # noqa: S314  of our own making


def groups(picture: str) -> dict[str, ET.Element]:
    root = parsed(picture)
    return {str(g.get("aria-label")): g for g in root.iter(f"{SVG}g") if g.get("aria-label")}


def texts(element: ET.Element) -> list[str]:
    return [str(text.text) for text in element.iter(f"{SVG}text")]


def test_it_is_told_to_who_hears_it(failed: tuple[Judged, str]) -> None:
    root = parsed(failed[1])
    assert root.get("role") == "img"
    ids = {e.get("id"): e.text for e in root if e.get("id")}
    assert set(str(root.get("aria-labelledby")).split()) <= ids.keys()
    assert ids["title"] == "Gates of release r1"
    assert "ttft_p90: failed, TTFT p90" in str(ids["description"])
    assert {e.tag for e in root.iter()} <= {SVG + tag for tag in TAGS}


def test_each_gate_has_its_evidence_and_its_measures(failed: tuple[Judged, str]) -> None:
    found = groups(failed[1])
    assert list(found) == [
        "error_rate: evidence",
        "error_rate: measured",
        "ttft_p90: evidence",
        "ttft_p90: measured",
    ]
    evidence, measured = texts(found["ttft_p90: evidence"]), texts(found["ttft_p90: measured"])
    assert {"minutes since the first look", "ln of the e-value"} <= set(evidence)
    assert {"that it is worse", "fails from here", "failed"} <= set(evidence)
    assert {"milliseconds", "canary", "baseline", "limit"} <= set(measured)
    assert "per cent" in texts(found["error_rate: measured"])


def test_the_evidence_crosses_its_bar_where_the_gate_failed(failed: tuple[Judged, str]) -> None:
    run, picture = failed
    group = groups(picture)["ttft_p90: evidence"]
    points = [
        tuple(map(float, point.split(",")))
        for line in group.iter(f"{SVG}polyline")
        for point in str(line.get("points")).split()
    ]
    looks = [m for look in run.store.looks("r1") for m in look.measurements if m.gate == "ttft_p90"]
    assert len(points) == len(looks)
    colour, dashes = Style.BAR.value
    [bar, _] = [
        float(str(line.get("y1")))
        for line in group.iter(f"{SVG}line")
        if line.get("stroke-dasharray") == dashes and line.get("stroke") == colour
    ]
    *before, last = points
    assert last[1] <= bar  # upwards is less in SVG
    assert all(y > bar for _, y in before)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_one_gate_alone_or_a_name_that_is_none(failed: tuple[Judged, str]) -> None:
    run, _ = failed
    assert list(groups(plot("r1", run.store.looks("r1"), "ttft_p90"))) == [
        "ttft_p90: evidence",
        "ttft_p90: measured",
    ]
    with pytest.raises(InputError, match="unknown gate of this release 'ttft_p99'"):
        plot("r1", run.store.looks("r1"), "ttft_p99")
    with pytest.raises(InputError, match="nothing to draw"):
        plot("r1", [])


def test_a_gate_of_one_rule_is_drawn_as_one_of_several() -> None:
    """``step_time`` says of its evidence in the details themselves."""
    details = {"log_e_fail": 1.0, "log_e_pass": None, "log_fail_at": 4.6, "log_pass_at": 3.0}
    looks = [
        look_record(
            "r1",
            at=15.0 * n,
            measurements=(
                Measurement("step_time", result("step_time", value=0.004, details=details), ""),
            ),
        )
        for n in range(3)
    ]
    found = groups(plot("r1", looks))
    assert "fails from here" in texts(found["step_time: evidence"])
    assert "passes from here" not in texts(found["step_time: evidence"])
    assert "milliseconds" in texts(found["step_time: measured"])


def test_what_was_not_measured_is_a_gap() -> None:
    assert runs([(0, 1.0), (1, None), (2, math.nan), (3, 2.0), (4, 3.0)]) == (
        ((0, 1.0),),
        ((3, 2.0), (4, 3.0)),
    )
    line = Line("a", runs([(0, 1.0), (1, None), (2, 4.0), (3, 2.0)]), Style.FIRST)
    drawn = parsed(render("t", "d", [Panel("p", "s", "s", (line,))]))
    assert len(list(drawn.iter(f"{SVG}circle"))) == 1
    assert len(list(drawn.iter(f"{SVG}polyline"))) == 1


def test_text_is_escaped_and_what_xml_cannot_hold_is_shown() -> None:
    panel = Panel("<p> & \x07", "x", "y", (Line("a", (((0.0, 1.0), (1.0, 1.0)),), Style.FIRST),))
    drawn = parsed(render("<t>", "d\x00", [panel]))
    assert "<p> & \N{REPLACEMENT CHARACTER}" in texts(drawn)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_round_few_and_inside(low: float, span: float) -> None:
    high = low + span
    if high - low < abs(low) * 1e-6:
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    slack = (high - low) * 1e-6
    assert low - slack <= found[0] <= found[-1] <= high + slack
