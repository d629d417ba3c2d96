"""What the engines and gates find in a document, at the place in the file where it stands."""

from pathlib import Path

import pytest

from canaryctl.controller.artifact.loader import inspect_artifact
from canaryctl.controller.cli.checks import document_checks

VALID = Path(__file__).parents[1] / "data" / "artifacts" / "valid.yaml"


def places(tmp_path: Path, *edits: tuple[str, str]) -> list[tuple[int, int, str]]:
    text = VALID.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "artifact.yaml"
    file.write_text(text)
    found = inspect_artifact(file, document_checks())
    return [(m.position.line, m.position.column, m.where) for m in found.mistakes if m.position]


def test_a_valid_document_passes(tmp_path: Path) -> None:
    assert places(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("name: simulated", "name: vlm", (9, 11, "runtime.engine.name")),
        ("2, 4, 8, 12", "2, 4, 8, 9000, 9001", (20, 52, "runtime.graph.capture_sizes")),
        ("tensor: 1", "tensor: 2", (17, 22, "runtime.parallel.tensor")),
        ("name: oom", "name: ooms", (33, 12, "gates[1].name")),
        ("max: 0", "max_ratio: 1%", (33, 28, "gates[1].max_ratio")),
    ],
)
def test_a_fault_is_located(
    tmp_path: Path, old: str, new: str, place: tuple[int, int, str]
) -> None:
    edits = [(old, new), ("16, 24, 32, 48]", "9002]"), ("[1, 8, 48]", "[1, 8]")]
    assert place in places(tmp_path, *(edits if "9000" in new else edits[:1]))


def test_a_gate_of_its_own_is_checked_where_it_stands(tmp_path: Path) -> None:
    counted = "numerator: {metric: a_total}, denominator: {metric: b_total}"
    for new, where in (
        (f"{{name: mine, {counted}, max_ratio: 1%}}", None),
        (f"{{name: mine, {counted}, max: 0}}", "gates[1].max"),
        ("{name: mine, numerator: {metric: a b}, max_ratio: 1%}", "gates[1].numerator.metric"),
        ("{name: mine, numerator: {metrics: a}, max_ratio: 1%}", "gates[1].numerator.metrics"),
        ("{name: mine, histogram: {metric: a_seconds}, max_seconds: 1s}", "gates[1].histogram"),
        (f"{{name: mine, {counted}, max_ratio: 1%, quantile: p98}}", "gates[1].quantile"),
    ):
        found = places(tmp_path, ("{name: oom, max: 0}", new))
        assert [w for _, _, w in found if w == where] == ([] if where is None else [where]), found
        assert all(line == 33 and column > 4 for line, column, _ in found)
        assert bool(found) is (where is not None)


def test_mistakes_of_every_kind_are_named_together(tmp_path: Path) -> None:
    found = places(
        tmp_path,
        ('version: "1.0"', "version: 1.0"),  # a type
        ("name: simulated", "name: vlm"),  # an engine
        ("2, 4, 8, 12", "2, 2, 8, 12"),  # the document itself
        ("name: oom", "name: ooms"),  # a gate
        ("replicas: 1", "replica: 1"),  # a key
    )
    assert [where for _, _, where in found] == [
        "runtime.engine.name",
        "runtime.engine.version",
        "runtime.graph.capture_sizes[2]",
        "replica",
        "gates[1].name",
    ]


def test_one_fault_is_named_once(tmp_path: Path) -> None:
    """The document's own checks and an engine's know some of the same things."""
    found = places(
        tmp_path,
        ("name: simulated", "name: vllm"),
        ('version: "1.0"', 'version: "0.25.1"\n    venv: /opt/vllm'),
        ("args: {seed: 7, jitter: 0.05}", "args: {}"),
        ("mode: FULL_AND_PIECEWISE", "mode: NONE"),
    )
    assert [where for _, _, where in found] == ["runtime.graph.capture_sizes"]


def test_a_gate_that_its_engine_can_tell_nothing_for_is_refused(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "trtllm" / "h200.yaml"
    file = tmp_path / "artifact.yaml"
    file.write_text(source.read_text())
    assert inspect_artifact(file, document_checks()).mistakes == ()
    file.write_text(
        source.read_text().replace(
            "gates:\n",
            "gates:\n  - {name: graph_fallback, max_ratio: 1%}\n"
            "  - {name: max_concurrency, max_regression: 5%}\n",
        )
    )
    found = [(m.where, m.message) for m in inspect_artifact(file, document_checks()).mistakes]
    assert [where for where, _ in found] == ["gates[0].name", "gates[1].name"]
    assert "graph_fallback reads steps, which no metric of trtllm 1.2.0 tells" in found[0][1]
    assert "leave the gate out" in found[1][1]
