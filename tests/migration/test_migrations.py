"""The schema that the migrations make is the one that the tables declare."""

import re
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.controller.errors import SchemaError
from canaryctl.controller.store import open_store, upgrade
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.controller.store.schema import HEAD, differences, require_head, revision
from canaryctl.controller.store.tables import metadata


def settings(url: str) -> SimpleNamespace:
    return SimpleNamespace(database_url=url, state_dir=Path("/nowhere"))


def test_upgrade_from_empty_makes_the_declared_tables(store_url: str) -> None:
    upgrade(store_url)
    engine = create_store_engine(store_url)
    assert revision(engine) == HEAD
    assert differences(engine) == ()
    engine.dispose()


def test_a_difference_is_seen(store_url: str) -> None:
    upgrade(store_url)
    engine = create_store_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE releases ADD COLUMN surprise INTEGER"))
        connection.execute(text("DROP TABLE measurements"))
    found = "\n".join(differences(engine))
    assert "surprise" in found
    assert "measurements" in found
    engine.dispose()


def test_checks_and_partial_indexes_are_the_declared_ones(tmp_path: Path) -> None:
    """Alembic compares neither: SQLite tells the text of both."""
    upgrade(f"sqlite:///{tmp_path}/migrated.db")
    migrated = create_store_engine(f"sqlite:///{tmp_path}/migrated.db")
    declared = create_engine(f"sqlite:///{tmp_path}/declared.db")
    metadata.create_all(declared)
    assert _schema(migrated) == _schema(declared)
    migrated.dispose()
    declared.dispose()


def _schema(engine: Engine) -> dict[str, list[str]]:
    """Name → the parts of its definition, in no order."""
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
                " AND type <> 'trigger' AND name <> 'alembic_version'"
            )
        )
        return {
            name: sorted(re.sub(r"\s+", " ", line).strip(" ,") for line in sql.splitlines())
            for name, sql in rows
        }


def test_head_is_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", "canaryctl.migrations:")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_upgrade_again_changes_nothing(store_url: str) -> None:
    upgrade(store_url)
    upgrade(store_url)
    engine = create_store_engine(store_url)
    require_head(engine)
    engine.dispose()


def test_upgrades_at_once_do_no_harm(store_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            upgrade(store_url)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    engine = create_store_engine(store_url)
    assert differences(engine) == ()
    engine.dispose()


def test_an_interrupted_upgrade_leaves_nothing(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("canaryctl.migrations.guards._DIALECTS", {})
        with pytest.raises(KeyError):
            upgrade(store_url)
    engine = create_store_engine(store_url)
    assert revision(engine) is None
    engine.dispose()
    upgrade(store_url)
    engine = create_store_engine(store_url)
    assert differences(engine) == ()
    engine.dispose()


def test_a_newer_schema_is_refused(store_url: str) -> None:
    upgrade(store_url)
    engine = create_store_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(SchemaError, match=r"9999.*newer canaryctl"):
        open_store(settings(store_url))
    with pytest.raises(SchemaError, match=r"9999.*newer canaryctl"):
        upgrade(store_url)


def test_opening_an_empty_database(store_url: str) -> None:
    """SQLite is brought up to date by itself, others by command."""
    if store_url.startswith("sqlite"):
        open_store(settings(store_url)).close()
    else:
        with pytest.raises(SchemaError, match="canaryctl db upgrade"):
            open_store(settings(store_url))
        upgrade(store_url)
        open_store(settings(store_url)).close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    database = tmp_path / "state" / "canaryctl.db"
    database.touch(mode=0o644)
    with open_store(settings(f"sqlite:///{database}")) as store:
        store.acquire("controller", "here", 10, datetime(2026, 1, 1, tzinfo=UTC))
        files = sorted(database.parent.iterdir())
        assert [file.name for file in files] == [
            "canaryctl.db",
            "canaryctl.db-shm",
            "canaryctl.db-wal",
        ]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("mysql://host/name", UnknownNameError, "mysql.*postgresql, sqlite"),
        ("sqlite://", InputError, "without a file"),
        ("sqlite:///:memory:", InputError, "without a file"),
        ("nonsense", InputError, "cannot be read"),
        ("postgresql+nosuchdriver://h/d", InputError, "driver"),
        ("sqlite:////proc/nowhere/x.db", InputError, "cannot use /proc/nowhere/x.db"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, error: type[InputError], words: str) -> None:
    with pytest.raises(error, match=words):
        create_store_engine(url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "canaryctl.db"
    path.write_text("not a database, but long enough to be looked at " * 20)
    with pytest.raises(SchemaError, match="not a database"):
        open_store(settings(f"sqlite:///{path}"))
