"""`canaryctl db`, on every backend."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from canaryctl.controller.cli.db import db
from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.controller.store.schema import HEAD

Run = Callable[..., Result]


@pytest.fixture
def run(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CANARYCTL_DATABASE_URL", store_url)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(db, arguments, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return invoke


def test_check_upgrade_check(run: Run, store_url: str) -> None:
    checked = run("check")
    assert checked.return_value is Exit.ERROR
    assert "canaryctl db upgrade" in checked.output
    assert f"none → {HEAD}" in run("upgrade").output
    assert "up to date" in run("upgrade").output
    assert run("check").return_value is Exit.OK

    engine = create_store_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE measurements"))
    engine.dispose()
    checked = run("check", "--json")
    assert checked.return_value is Exit.ERROR
    document = json.loads(checked.output)
    assert document["revision"] == document["expected"] == HEAD
    assert any("measurements" in difference for difference in document["differences"])


def test_upgrade_as_json(run: Run) -> None:
    document = json.loads(run("upgrade", "--json").output)
    assert (document["before"], document["after"]) == (None, HEAD)
