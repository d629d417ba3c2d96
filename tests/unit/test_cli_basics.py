"""The frame of the command line: exit codes, streams, help that loads nothing, settings."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from canaryctl.common.errors import ConflictError, InputError, TemporaryError
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.controller.cli import app as app_module
from canaryctl.controller.cli import main
from canaryctl.controller.cli.exits import Exit, exit_of
from canaryctl.controller.cli.lazy import Lazy
from canaryctl.controller.cli.output import Table, emit_json
from canaryctl.controller.model import Artifact
from canaryctl.controller.settings import VARIABLES, Settings
from canaryctl.controller.store import open_store

DATA = Path(__file__).parents[1] / "data" / "artifacts"
VALID = str(DATA / "valid.yaml")
PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from canaryctl.controller.cli import main; sys.exit(main())",
]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CANARYCTL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CANARYCTL_STATE_DIR", str(tmp_path / "state"))


def run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, **options
    )


def with_command(monkeypatch: pytest.MonkeyPatch, callback: Callable[[], object]) -> None:
    """`canaryctl probe` is ``callback`` for one test."""
    monkeypatch.setattr(
        sys.modules[__name__], "probe", click.Command("probe", callback=callback), raising=False
    )
    monkeypatch.setattr(
        app_module.app, "lazy", {"probe": Lazy(f"{__name__}:probe", "For one test.")}
    )


# --- ends of a command ---------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("found 1, expected 2"), 2, "error: found 1, expected 2\n"),
        (InputError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (ConflictError("another release is active"), 5, "error: another release is active\n"),
        (TemporaryError("later"), 1, "error: later\n"),
        (click.BadParameter("no"), 2, "error: Invalid value: no"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_every_error_has_its_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_command(monkeypatch, raising(error))
    assert main(["probe"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.lstrip().startswith(message)


def test_a_fault_of_ours_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, raising(ZeroDivisionError("x")))
    assert main(["probe"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: a fault in canaryctl: ZeroDivisionError: x\n")


def test_a_command_returns_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, lambda: Exit.ROLLED_BACK)
    assert main(["probe"]) == 3
    with_command(monkeypatch, lambda: None)
    assert main(["probe"]) == 0


def test_codes_are_the_documented_ones() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "OK": 0,
        "ERROR": 1,
        "INPUT": 2,
        "ROLLED_BACK": 3,
        "HELD": 4,
        "REFUSED": 5,
        "FAILED": 6,
        "INTERRUPTED": 130,
    }
    assert exit_of(RuntimeError()) is Exit.ERROR


def test_json_is_one_document_for_errors_too(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, kind in (
        (["artifact", "show", "nobody", "--json"], "NotFoundError"),
        (["artifact", "show", "--json"], "UsageError"),
        (["artifact", "list", "--json", "--servic", "x"], "UsageError"),
        (["artifact", "diff", "/nonexistent/a.yaml", VALID, "--json"], "ArtifactError"),
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        error = json.loads(out)["error"]
        assert (error["kind"], error["exit_code"]) == (kind, 2)
        assert err == "".join(f"error: {line}\n" for line in error["message"].splitlines())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing command"),
        (["artifac"], 'did you mean "artifact"?'),
        (["artifact"], "see canaryctl artifact --help"),
        (["--nope"], "No such option"),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert expected in err


def test_ctrl_c_ends_with_130() -> None:
    """A real signal, while the command waits for a line."""
    code = """
import signal, sys, types, click
from canaryctl.controller.cli import main
from canaryctl.controller.cli.app import app
from canaryctl.controller.cli.lazy import Lazy

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

def wait():
    print("ready", flush=True)
    sys.stdin.read()

sys.modules["waits"] = types.SimpleNamespace(command=click.Command("waits", callback=wait))
app.lazy = {"waits": Lazy("waits:command", "")}
sys.exit(main(["waits"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*PROGRAM, "--help"], stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_any_name_can_be_printed_in_any_locale(tmp_path: Path) -> None:
    file = tmp_path / "模型.yaml"
    file.write_text(Path(VALID).read_text())
    done = run("artifact", "validate", str(file), env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6a21\u578b.yaml: valid" in done.stdout


# --- help and what it costs ------------------------------------------------------------------


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from canaryctl.controller.cli import main; main(['--help']);"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("artifact", "version"):
        assert name in done.stdout
    loaded = done.stderr
    for heavy in ("pydantic", "sqlalchemy", "rich", "yaml", "httpx", "alembic", "torch", "vllm"):
        assert f"'{heavy}'" not in loaded
    assert "canaryctl.controller.cli.artifact'" not in loaded


def test_every_registered_command_exists_under_its_name() -> None:
    context = click.Context(app_module.app)
    for name, entry in app_module.COMMANDS.items():
        command = app_module.app.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert entry.help.endswith(".")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("canaryctl, version ")


# --- artifact commands -----------------------------------------------------------------------


def test_validate_names_all_mistakes_of_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    bad = str(DATA / "bad" / "unquoted-text.yaml")
    assert main(["artifact", "validate", VALID]) == 0
    assert capsys.readouterr().out.startswith(f"{VALID}: valid, chat-qwen3-0.6b@2026.11.29-1, sha")
    assert main(["artifact", "validate", VALID, bad, "/dev/zero"]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert (
        f'error: {bad}:11:10: version: found the number 1.10, expected text; quote it: "1.10"'
        in err
    )
    assert "error: /dev/zero: found a device, expected a regular file" in err
    assert main(["artifact", "validate", VALID, bad, "--json"]) == 2
    good, faulty = json.loads(capsys.readouterr().out)["files"]
    assert good["valid"]
    assert good["digest"] == load_artifact(Path(VALID)).digest
    assert not faulty["valid"]
    assert faulty["mistakes"][0] == {
        "line": 11,
        "column": 10,
        "where": "version",
        "message": 'found the number 1.10, expected text; quote it: "1.10"',
    }


def test_validate_knows_the_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(Path(VALID).read_text().replace("name: simulated", "name: vlm"))
    assert main(["artifact", "validate", str(file)]) == 2
    assert 'found "vlm", expected one of' in (err := capsys.readouterr().err)
    assert 'did you mean "vllm"?' in err


def test_diff_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    text = Path(VALID).read_text().replace("seed: 7", "seed: 8")
    other.write_text(text.replace("24, 32, 48]", "24, 48, 64]"))
    assert main(["artifact", "diff", VALID, VALID]) == 0
    assert capsys.readouterr().out.endswith("the same runtime\n")
    assert main(["artifact", "diff", VALID, str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["WHAT", "WHERE", "CHANGE"]
    assert lines[3].split(maxsplit=2) == ["graph", "grid", "graph.capture_sizes  +64 -32"]
    assert lines[4].split(maxsplit=1) == ["arguments", "engine.args.seed     7 → 8"]
    assert main(["artifact", "diff", VALID, str(other), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["same"] is False
    assert [c["group"] for c in document["changes"]] == ["graph grid", "arguments"]
    assert document["changes"][0]["added"] == [64]


def test_stored_artifacts_are_listed_shown_and_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["artifact", "list"]) == 0
    assert capsys.readouterr().out == ""
    loaded = load_artifact(Path(VALID))
    store = open_store(Settings.from_environment())
    store.register_artifact(
        Artifact(
            digest=loaded.digest,
            name=loaded.document.name,
            version=loaded.document.version,
            service=loaded.document.service,
            runtime=loaded.document.runtime,
            created_at=datetime(2026, 11, 29, 12, 30, tzinfo=UTC),
        )
    )
    store.close()
    assert main(["artifact", "list"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "VERSION", "SERVICE", "DIGEST", "ENGINE", "CREATED"]
    assert row.split()[:4] == ["chat-qwen3-0.6b", "2026.11.29-1", "chat", loaded.digest[7:19]]
    assert main(["artifact", "list", "--service", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"artifacts": []}
    for reference in (
        loaded.digest,
        loaded.digest[7:19],
        "chat-qwen3-0.6b",
        "chat-qwen3-0.6b@2026.11.29-1",
    ):
        assert main(["artifact", "show", reference, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["digest"] == loaded.digest
        assert shown["created_at"] == "2026-11-29T12:30:00+00:00"
        assert shown["runtime"]["limits"]["max_num_seqs"] == 256
    assert main(["artifact", "show", "chat-qwen3-0.6b"]) == 0
    assert "max_num_seqs: 256" in capsys.readouterr().out
    assert main(["artifact", "diff", "chat-qwen3-0.6b", VALID]) == 0
    assert capsys.readouterr().out.endswith("the same runtime\n")


# --- output ----------------------------------------------------------------------------------


def test_a_table_is_aligned_text_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "state")
    table.add("a", "ready")
    table.add("longer", "\x1b[31mred\n")
    table.print()
    assert capsys.readouterr().out == ("NAME    STATE\na       ready\nlonger  \\x1b[31mred\\n\n")
    with pytest.raises(ValueError, match="found 1 cells, expected 2"):
        table.add("a")


def test_a_terminal_gets_a_drawn_table_and_names_stay_as_they_are() -> None:
    code = (
        "from canaryctl.controller.cli.output import Table\n"
        "t = Table('name'); t.add('[bold]a[/bold]'); t.print()"
    )
    environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environ["TERM"] = "xterm-256color"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run([sys.executable, "-c", code], stdout=theirs, env=environ, check=True)
        os.close(theirs)
        text = terminal.read(10_000).decode()
    assert "[bold]a[/bold]" in text
    assert "\x1b[1m" in text  # bold headings


def test_json_has_a_form_for_times_and_paths(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json(
        {"at": datetime(2026, 1, 1, tzinfo=UTC), "path": Path("/x"), "name": "é", "set": {2, 1}}
    )
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {
        "at": "2026-01-01T00:00:00+00:00",
        "path": "/x",
        "name": "é",
        "set": [1, 2],
    }
    with pytest.raises(TypeError, match="object has no JSON form"):
        emit_json({"x": object()})


# --- settings --------------------------------------------------------------------------------


def test_settings_have_defaults_below_the_state_folder() -> None:
    settings = Settings.from_environment({"HOME": "/home/a"})
    assert settings.state_dir == Path("/home/a/.local/state/canaryctl")
    assert settings.database_url == "sqlite:////home/a/.local/state/canaryctl/canaryctl.db"
    assert (settings.envoy, settings.host, settings.simulated_gpus) == (None, "127.0.0.1", 8)
    xdg = Settings.from_environment({"HOME": "/home/a", "XDG_STATE_HOME": "/var/s"})
    assert xdg.state_dir == Path("/var/s/canaryctl")
    relative = Settings.from_environment({"HOME": "/home/a", "XDG_STATE_HOME": "s"})
    assert relative.state_dir == settings.state_dir


def test_settings_are_read(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "HOME": "/home/a",
            "CANARYCTL_STATE_DIR": "~/s",
            "CANARYCTL_DATABASE_URL": "postgresql+psycopg://u:hidden@h/db",
            "CANARYCTL_ENVOY": sys.executable,
            "CANARYCTL_HOST": "::1",
            "CANARYCTL_SIMULATED_GPUS": "2",
            "CANARYCTL_SERVE_PORT": "9000",
            "CANARYCTL_INSTANCE": "an engine's",
        }
    )
    assert settings.state_dir == Path("/home/a/s")
    assert settings.envoy == Path(sys.executable)
    assert (settings.host, settings.simulated_gpus, settings.serve_port) == ("::1", 2, 9000)
    assert "hidden" not in repr(settings)


def test_every_bad_setting_is_named_at_once() -> None:
    with pytest.raises(InputError) as raised:
        Settings.from_environment(
            {
                "HOME": "/home/a",
                "CANARYCTL_STATE_DIRS": "/x",
                "CANARYCTL_ZZZ": "1",
                "CANARYCTL_STATE_DIR": " ",
                "CANARYCTL_DATABASE_URL": "mysql://u:hidden@h/db",
                "CANARYCTL_ENVOY": "/nonexistent",
                "CANARYCTL_HOST": "localhost!",
                "CANARYCTL_SIMULATED_GPUS": "-1",
                "CANARYCTL_SERVE_PORT": "70000",
            }
        )
    lines = str(raised.value).splitlines()
    assert len(lines) == 8
    assert lines[0].endswith("did you mean CANARYCTL_STATE_DIR?")
    assert lines[1].endswith("unset it")
    assert "hidden" not in str(raised.value)
    assert "CANARYCTL_SERVE_PORT: found '70000', expected a whole number from 1 to 65535" in lines


def test_without_a_home_there_is_no_default() -> None:
    with pytest.raises(InputError, match="HOME is not set"):
        Settings.from_environment({})


def test_an_unknown_setting_stops_a_command() -> None:
    done = run("artifact", "list", env={**os.environ, "CANARYCTL_STATEDIR": "/x"})
    assert done.returncode == 2
    assert "did you mean CANARYCTL_STATE_DIR?" in done.stderr
    assert all(name in done.stderr for name in VARIABLES)
