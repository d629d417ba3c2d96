"""What a calibration measures and what it says of itself, without an engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.controller.baseline.stages import Stage
from canaryctl.controller.calibration.grids import grids, require_measurable
from canaryctl.controller.calibration.kept import Kept, MeasuredStart, kept_beside
from canaryctl.controller.calibration.run import graphs_of
from canaryctl.controller.calibration.words import engine_words, machine_words, model_words
from canaryctl.controller.gridsetup import rules_of
from canaryctl.runtimes.engines.simulated import SimulatedEngine
from canaryctl.runtimes.engines.trtllm import TrtllmEngine
from canaryctl.runtimes.engines.vllm import VllmEngine
from canaryctl.runtimes.spec import RuntimeSpec
from tests.support.simulated import simulated_spec


def runtime(**sections: Any) -> RuntimeSpec:
    document = {
        "engine": {"name": "vllm", "version": "0.25.1", "venv": "/opt/vllm"},
        "model": {"id": "m"},
        "limits": {"max_num_seqs": 64},
    }
    return RuntimeSpec.model_validate({**document, **sections})


def test_the_grids_tell_costs_apart() -> None:
    found = {grid.name: grid for grid in grids(runtime())}
    assert found["few"].graph.capture_sizes == (1, 2, 4, 8, 12, 16, 24, 32)
    assert found["few"].batches[-1] == 48  # beyond the grid
    assert found["dense"].graph.capture_sizes == tuple(range(1, 65))
    assert found["eager"].graph.mode == "NONE"
    spread = (1, 2, 3, 4, 6, 8, 11, 15, 21, 29, 41, 57, 80, 112, 128)  # to the default's largest
    assert found["spread"].graph.capture_sizes == spread


@given(st.integers(1, 7), st.integers(2, 600), st.sampled_from([256, 2048, 8192]))
def test_with_speculative_decoding_sizes_are_whole_decodes(
    speculative: int, sequences: int, budget: int
) -> None:
    limits = {"max_num_seqs": min(sequences, budget), "max_num_batched_tokens": budget}
    spec = runtime(
        limits=limits, speculative={"method": "eagle", "num_speculative_tokens": speculative}
    )
    require_measurable(spec, VllmEngine())
    rules = rules_of(spec)
    modes: dict[str, list[str]] = {}
    for grid in grids(spec):
        started_as = grid.runtime(spec)
        resolved = VllmEngine().resolved_grid(started_as)
        if grid.graph.capture_sizes is not None:
            assert resolved == grid.graph.capture_sizes
        graphs = rules_of(started_as).graphs(resolved)
        for batch in grid.batches:
            step = graphs.dispatch(batch * rules.decode_tokens, pure_decode=True)
            modes.setdefault(grid.name, []).append(step.mode.value)
    assert set(modes["eager"]) == {"NONE"}
    assert modes["few"][-1] == "NONE"
    assert set(modes["few"][:-1]) == set(modes["dense"]) == {"FULL"}
    assert modes["default"][0] == "FULL"
    assert modes["piecewise"][0] == "PIECEWISE"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 3}}, "as many tokens as"),
        ({"parallel": {"pipeline": 2}, "gpu": {"count": 2}}, "parallel.pipeline is 2"),
        ({"gpu": {"count": 0}}, "gpu.count is 0"),
        ({"limits": {"max_num_seqs": 1}}, "expected 2 at least"),
        ({"limits": {"max_model_len": 8}}, "cannot be run"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_started(
    sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        require_measurable(runtime(**sections), VllmEngine())


def test_an_engine_that_times_no_steps_is_refused() -> None:
    spec = runtime(engine={"name": "trtllm", "version": "1.2.0"})
    with pytest.raises(InputError, match="trtllm does not say how long its steps take"):
        require_measurable(spec, TrtllmEngine())


def attested(mode: str, sizes: list[int] | None) -> dict[str, Any]:
    return {"attested": {"graph_mode": mode}, "captured_sizes": sizes}


def test_other_graphs_than_asked_for_are_no_calibration() -> None:
    spec = runtime()
    stages = {grid.name: Stage(grid.name, grid.runtime(spec)) for grid in grids(spec)}
    both = "FULL_AND_PIECEWISE"
    assert graphs_of(stages["spread"], (8, 64, 512), attested(both, [8, 64, 512])) == (8, 64, 512)
    assert graphs_of(stages["eager"], (), attested("NONE", [])) == ()
    # What a release adds to its default is not all known.
    assert graphs_of(stages["default"], (1, 2), attested(both, [1, 2, 3])) == (1, 2, 3)
    for name, expected, facts in (
        ("spread", (8, 64, 512), attested(both, [8, 64])),
        ("spread", (8, 64, 512), attested(both, [8, 64, 256, 512])),
        ("spread", (8, 64, 512), attested("PIECEWISE", [8, 64, 512])),
        ("default", (1, 2), attested(both, [1])),
        ("eager", (), attested(both, [1])),
    ):
        with pytest.raises(PermanentError, match=f"{name} runs other graphs"):
            graphs_of(stages[name], expected, facts)
    for facts in ({}, attested(both, None), {"captured_sizes": [8, 64, 512]}):
        with pytest.raises(PermanentError, match="does not attest"):
            graphs_of(stages["spread"], (8, 64, 512), facts)


def test_it_says_with_what_it_was_measured() -> None:
    said = engine_words(VllmEngine(), runtime(), {"torch_version": "2.11.0+cu130"})
    assert said == "vllm 0.25.1 (model runner V1), torch 2.11.0+cu130"
    assert engine_words(VllmEngine(), runtime(), {}) == "vllm 0.25.1 (model runner V1)"
    assert engine_words(SimulatedEngine(), simulated_spec(), {}) == "simulated 0.25.1"


def test_a_models_path_is_nobody_elses_business(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    local = runtime(model={"id": str(folder)})
    assert model_words(local, None) == "a model in a folder qwen, max_model_len 4096"
    shape = {"num_hidden_layers": 28, "hidden_size": 1024, "vocab_size": 9}
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"], **shape})
    )
    said = model_words(local, None)
    assert said == "Qwen3ForCausalLM of layers 28, hidden 1024, max_model_len 4096"
    assert model_words(local, "shape of Qwen3-0.6B") == "shape of Qwen3-0.6B, max_model_len 4096"
    guessing = runtime(speculative={"method": "eagle", "num_speculative_tokens": 3})
    assert model_words(guessing, None) == (
        "m, max_model_len 4096, speculative decoding of 3 tokens by eagle"
    )


START = MeasuredStart("eager", "one H200", "vllm", (), ((1, 2.5),), None, None, 100, 10, 1.5)


def test_kept_starts_are_those_of_the_same_question(tmp_path: Path) -> None:
    path = kept_beside(tmp_path / "cost.json")
    said: list[str] = []
    asked = {"artifact": "a", "grids": [("few", (1, 2))]}
    kept = Kept(path, asked, said.append)
    kept.add(START)
    again = Kept(path, asked, said.append)
    assert again.find("eager") == START
    assert again.find("default") is None
    assert len(Kept(path, {**asked, "artifact": "b"}, said.append)) == 0
    assert said[-1].endswith("is of another artifact: beginning anew")
    elsewhere = MeasuredStart("few", "one L4", "vllm", (1, 2), (), 1.0, 1.0)
    with pytest.raises(InputError, match="found vllm on one L4, and the starts kept"):
        again.add(elsewhere)
    path.write_text(path.read_text().replace('"sizes"', '"other"'))
    with pytest.raises(InputError, match="no whole starts"):
        Kept(path, asked, said.append)
    kept.remove()
    assert not path.exists()


def test_the_machine_is_that_of_the_engines_own_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    rows = [f"{index}, NVIDIA {name}, 9, 9, 0, 580.1" for index, name in enumerate("ABB")]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert machine_words(VllmEngine(), (1,)) == "one NVIDIA B, driver 580.1"
    assert machine_words(VllmEngine(), (1, 2)) == "2 NVIDIA B, driver 580.1"
    assert machine_words(SimulatedEngine(), (0,)) == "a simulated GPU"
