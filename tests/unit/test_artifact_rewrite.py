"""Writing a grid into an artifact: what is not the grid stays as it was."""

from pathlib import Path

import pytest
import yaml

from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.controller.artifact.rewrite import rewritten, write_grid, write_warmup
from canaryctl.controller.errors import ArtifactError

HEAD = """# The chat runtime.
apiVersion: canaryctl/v1
kind: RuntimeArtifact
name: chat
version: "1"   # by hand
service: chat
"""
TAIL = """# from here on: the release
gates:
  - {name: oom, max: 0}   # never
"""
BLOCK = """runtime:
  engine: {name: simulated, version: 0.25.1}   # no GPU
  model: {id: qwen3-0.6b}
  # the grid
  graph:
    mode: FULL        # was tried
    capture_sizes:    # by hand
      - 1
      - 2   # two
  limits: {max_num_seqs: 256}
  warmup_plan:
    repeat_per_bucket: 2   # enough
    decode_buckets: [1, 2]
"""
FLOW = """runtime:
  engine: {name: simulated, version: 0.25.1}
  graph: {capture_sizes: [1, 2]}   # a comment
  model: {id: qwen3-0.6b}
  warmup_plan: {}
"""
NONE = """runtime:
  # first of all
  engine: {name: simulated, version: 0.25.1}
  model: {id: qwen3-0.6b}
"""
ALL_FLOW = "runtime: {engine: {name: simulated, version: 0.25.1}, model: {id: qwen3-0.6b}}\n"
SIZES = (3, 8, 21)
FORMS = {
    "flow": "    capture_sizes: [1, 2]  # ours\n",
    "block": "    capture_sizes:\n      - 1\n      - 2\n",
    "block indented as its key": "    capture_sizes:\n    - 1\n    - 2\n",
    "block with a comment": "    capture_sizes:  # ours\n    # all\n    - 1\n    - 2\n",
    "none": "",
}


def write(tmp_path: Path, runtime: str, sizes: tuple[int, ...] = SIZES) -> tuple[Path, str]:
    path = tmp_path / "chat.yaml"
    path.write_text(HEAD + runtime + TAIL)
    write_grid(
        path,
        mode="FULL_AND_PIECEWISE",
        sizes=sizes,
        decode_buckets=sizes,
        mixed_token_buckets=(21,),
    )
    return path, path.read_text()


@pytest.mark.parametrize("runtime", [BLOCK, FLOW, NONE, ALL_FLOW])
def test_the_grid_is_set_and_the_rest_stays(tmp_path: Path, runtime: str) -> None:
    path, text = write(tmp_path, runtime)
    found = load_artifact(path).document.runtime
    assert found.graph.capture_sizes == SIZES
    assert found.graph.mode == "FULL_AND_PIECEWISE"
    assert found.warmup_plan.decode_buckets == SIZES
    assert found.warmup_plan.mixed_token_buckets == (21,)
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)
    for comment in (line.partition("#")[2] for line in runtime.splitlines() if "#" in line):
        assert comment in text or comment == " two"
    assert not list(tmp_path.glob(".*"))


def test_only_lines_of_the_grid_change(tmp_path: Path) -> None:
    _, text = write(tmp_path, BLOCK)
    before, after = (HEAD + BLOCK + TAIL).splitlines(), text.splitlines()
    assert [line for line in before if line not in after] == [
        "    mode: FULL        # was tried",
        "    capture_sizes:    # by hand",
        "      - 1",
        "      - 2   # two",
        "    decode_buckets: [1, 2]",
    ]
    assert [line for line in after if line not in before] == [
        "    mode: FULL_AND_PIECEWISE        # was tried",
        "    capture_sizes: [3, 8, 21]    # by hand   # two",
        "    mixed_token_buckets: [21]",
        "    decode_buckets: [3, 8, 21]",
    ]


def test_writing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    path, text = write(tmp_path, BLOCK)
    write_grid(
        path,
        mode="FULL_AND_PIECEWISE",
        sizes=SIZES,
        decode_buckets=SIZES,
        mixed_token_buckets=(21,),
    )
    assert path.read_text() == text


def test_a_long_grid_is_wrapped(tmp_path: Path) -> None:
    sizes = tuple(range(1, 80))
    path, text = write(tmp_path, BLOCK, sizes)
    assert load_artifact(path).document.runtime.graph.capture_sizes == sizes
    assert max(map(len, text.splitlines())) <= 100


def test_a_file_with_mistakes_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(HEAD + BLOCK.replace("simulated", "unknown: x") + TAIL)
    before = path.read_text()
    with pytest.raises(ArtifactError):
        write_grid(path, mode="FULL", sizes=(1,), decode_buckets=(1,), mixed_token_buckets=())
    assert path.read_text() == before


@pytest.mark.parametrize("form", FORMS)
def test_sizes_are_set_in_every_form(form: str) -> None:
    text = f"runtime:\n  graph:\n    mode: FULL\n{FORMS[form]}  limits: {{max_num_seqs: 8}}\n"
    found = rewritten(text, {"graph": {"capture_sizes": [4, 8]}})
    assert yaml.safe_load(found) == {
        "runtime": {
            "graph": {"mode": "FULL", "capture_sizes": [4, 8]},
            "limits": {"max_num_seqs": 8},
        }
    }
    assert [line for line in found.splitlines() if "#" in line] == [
        line.replace("[1, 2]", "[4, 8]").replace(":  # ours", ": [4, 8]  # ours")
        if "capture_sizes:  #" in line
        else line.replace("[1, 2]", "[4, 8]")
        for line in text.splitlines()
        if "#" in line
    ]


def test_a_warm_up_plan_alone_leaves_the_grid_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(HEAD + BLOCK + TAIL)
    loaded = write_warmup(path, decode_buckets=(1, 2), mixed_token_buckets=(512,))
    assert path.read_text() == (HEAD + BLOCK + TAIL).replace(
        "    repeat_per_bucket: 2   # enough\n",
        "    mixed_token_buckets: [512]\n    repeat_per_bucket: 2   # enough\n",
    )
    plan = loaded.document.runtime.warmup_plan
    assert (plan.decode_buckets, plan.mixed_token_buckets) == ((1, 2), (512,))
    assert plan.repeat_per_bucket == 2
