"""Setting a grid in an artifact's text: whatever the form of what stood there."""

import pytest
import yaml

from canaryctl.controller.artifact.rewrite import rewritten

FORMS = {
    "flow": "    capture_sizes: [1, 2]  # ours\n",
    "block": "    capture_sizes:\n      - 1\n      - 2\n",
    "block indented as its key": "    capture_sizes:\n    - 1\n    - 2\n",
    "block with a comment": "    capture_sizes:  # ours\n    # all\n    - 1\n    - 2\n",
    "none": "",
}


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
