"""What exists is documented: every gate, command, setting and dependency."""

import re
import tomllib
from pathlib import Path

import pytest

from canaryctl.controller.cli.app import COMMANDS
from canaryctl.controller.settings import VARIABLES
from canaryctl.gates.registry import known_names

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(
    path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
)


@pytest.mark.parametrize("name", known_names())
def test_every_gate_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "gates.md").read_text()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    assert re.search(rf"(canaryctl\s+|`|\|){name}\b", PAGES), name


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_setting_is_documented(name: str) -> None:
    assert name in PAGES


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("## Dependencies")[1]
    for dependency in project["dependencies"]:
        name = re.split(r"[<>=;\[ ]", dependency)[0]
        assert name in page, name
