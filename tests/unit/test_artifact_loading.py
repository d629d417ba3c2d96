"""Reading artifact files: every mistake, where it stands, and nothing that hangs."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.loader import (
    MAX_BYTES,
    LoadedArtifact,
    inspect_artifact,
    load_artifact,
)
from canaryctl.controller.artifact.mistakes import Mistake
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.errors import ArtifactError

DATA = Path(__file__).parents[1] / "data" / "artifacts"
BAD = sorted((DATA / "bad").glob("*.yaml"))


def only_simulated(document: ArtifactDocument) -> Iterator[Mistake]:
    name = document.runtime.engine.name
    if name != "simulated":
        yield Mistake(
            ("runtime", "engine", "name"), f'found "{name}", expected one of simulated, vllm'
        )


def mistakes_in(tmp_path: Path, content: str | bytes) -> list[str]:
    """The mistakes without the file's name in front."""
    file = tmp_path / "artifact.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return [str(m).removeprefix(f"{file}:").strip() for m in inspect_artifact(file).mistakes]


def valid_text() -> str:
    return (DATA / "valid.yaml").read_text()


def edited(old: str, new: str) -> str:
    text = valid_text()
    assert old in text
    return text.replace(old, new)


def test_the_bad_files_are_there() -> None:
    assert len(BAD) >= 25


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_each_bad_file_names_exactly_its_mistakes(file: Path) -> None:
    expected = [
        line.removeprefix("# expect: ")
        for line in file.read_text().splitlines()
        if line.startswith("# expect: ")
    ]
    found = inspect_artifact(file, [only_simulated])
    assert found.artifact is None
    assert [str(m).removeprefix(f"{file}:").strip() for m in found.mistakes] == expected
    with pytest.raises(ArtifactError) as raised:
        load_artifact(file, [only_simulated])
    assert str(raised.value).splitlines() == [str(m) for m in found.mistakes]


def test_a_valid_file_loads() -> None:
    loaded = load_artifact(DATA / "valid.yaml")
    assert isinstance(loaded, LoadedArtifact)
    assert loaded.document.name == "chat-qwen3-0.6b"
    assert loaded.document.runtime.graph.capture_sizes == (1, 2, 4, 8, 12, 16, 24, 32, 48)
    assert loaded.document.rollout.interval == 15.0
    assert loaded.document.rollout.steps[1].bake == 120.0
    assert loaded.document.gates[0].max_regression == pytest.approx(0.1)
    assert loaded.directory == DATA
    assert loaded.source == valid_text()


def test_a_relative_path_gives_an_absolute_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text(valid_text())
    monkeypatch.chdir(tmp_path)
    assert load_artifact(Path("a.yaml")).directory == tmp_path


def test_utf8_with_a_mark_and_windows_line_ends_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + valid_text().replace("\n", "\r\n").encode())
    assert load_artifact(file).digest == load_artifact(DATA / "valid.yaml").digest


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    (mistake,) = mistakes_in(tmp_path, valid_text().encode(encoding))
    assert encoding[:6].upper() in mistake
    assert "save it as UTF-8" in mistake


def test_latin1_is_found_at_its_place(tmp_path: Path) -> None:
    content = edited("model: H200", 'model: "Gerät"').encode("latin-1")
    (mistake,) = mistakes_in(tmp_path, content)
    assert mistake.startswith("16:20: found byte 0xe4, which is not UTF-8")


@pytest.mark.parametrize("content", [b"", b"\n  \n", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    assert "the file is empty" in mistakes_in(tmp_path, content)[0]


@pytest.mark.parametrize("content", ["---\n", "null\n", "# only words\n", "~"])
def test_a_file_without_a_document(tmp_path: Path, content: str) -> None:
    assert "the file holds no document" in mistakes_in(tmp_path, content)[0]


def test_control_characters(tmp_path: Path) -> None:
    assert mistakes_in(tmp_path, "a: x\0y")[0] == "1:5: found a NUL byte, expected text"
    assert mistakes_in(tmp_path, "a: \x1b[2J")[0].startswith(r"1:4: found the character '\x1b'")
    escaped = mistakes_in(tmp_path, edited("id: Qwen/Qwen3-0.6B", r'id: "a\0b"'))
    assert escaped == ["18:15: runtime.model.id: found a NUL character, expected text without one"]


def test_no_message_can_steer_a_terminal(tmp_path: Path) -> None:
    (mistake,) = mistakes_in(tmp_path, edited("service: chat", r'service: "\e[2J\x9b"'))
    assert mistake.isprintable()
    file = tmp_path / "a\x1b[2J\n.yaml"
    file.write_text("")
    assert str(inspect_artifact(file).mistakes[0]).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        r'a: "\UFFFFFFFF"',
        r'a: "\U00110000"',
        "%YAML 1." + "1" * 5000 + "\n---\na: 1",
        "a: [" + "9" * 5000 + "]",
        "a: 1.0e+999",
        r'a: "\ud800"',
    ],
)
def test_numbers_that_break_parsers_are_mistakes(tmp_path: Path, text: str) -> None:
    assert mistakes_in(tmp_path, text)


BOMB = "a: &a [x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, here in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "expected the value; write it out"),
        ("[" * 500_000, "levels of nesting"),
        ("a: " + "{a: " * 200_000, "levels of nesting"),
        ("- " * 500_000, "levels of nesting"),
        ("? " * 500_000, "as a key"),
        ("[" + "1," * 500_000, "more than 10000 values"),
        ("".join(f"k{i}: 1\n" for i in range(90_000)), "more than 10000 values"),
        ("".join(f"runtim{i}: 1\n" for i in range(3_000)), "unknown key"),
        ("? " + "a" * 1_000_000 + "\n: 1\n", "unknown key"),
        ("a: " + "_" * 1_000_000, "unknown key"),
    ],
    ids=["aliases", "lists", "mappings", "dashes", "keys", "values", "names", "wrong", "long", "_"],
)
def test_bombs_end_soon(tmp_path: Path, text: str, expected: str) -> None:
    began = time.monotonic()
    found = mistakes_in(tmp_path, text)
    assert any(expected in mistake for mistake in found)
    assert time.monotonic() - began < 60  # seconds; about one, on an idle machine


def test_too_large_a_file(tmp_path: Path) -> None:
    (mistake,) = mistakes_in(tmp_path, b"#" * (MAX_BYTES + 1))
    assert mistake == f"found more than {MAX_BYTES} bytes, expected at most that many"
    assert "holds no document" in mistakes_in(tmp_path, b"#" * MAX_BYTES)[0]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/zero", "found a device"),
        ("/", "found a directory"),
        ("/nonexistent/a.yaml", "no such file"),
        ("/etc/passwd/a.yaml", "no such file"),
        ("a\0b", "cannot be a file's"),
        ("a" * 5000, "not readable"),
    ],
)
def test_what_is_no_file(path: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_artifact(Path(path))


def test_pipes_and_sockets_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for kind in ("pipe", "socket"):
            with pytest.raises(ArtifactError, match=f"found a {kind}, expected a regular file"):
                load_artifact(tmp_path / kind)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ArtifactError, match="not readable"):
        load_artifact(tmp_path / "loop")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(valid_text())

    def refuse(*_: object) -> int:  # root reads everything: the kernel's answer is given here
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ArtifactError, match="expected a file that you may read"):
        load_artifact(file)


def test_a_check_is_not_misled_by_a_mistake_elsewhere(tmp_path: Path) -> None:
    """max_num_seqs falls back to 256 where it is mistaken: no bucket is judged by that."""
    text = edited("max_num_seqs: 256", "max_num_seqs: many").replace(
        "capture_sizes: [1, 2, 4, 8, 12, 16, 24, 32, 48]", "capture_sizes: [1, 8, 48, 512]"
    )
    text = text.replace("decode_buckets: [1, 8, 48]", "decode_buckets: [1, 8, 512]")
    found = mistakes_in(tmp_path, text)
    assert found == [
        '21:26: runtime.limits.max_num_seqs: found "many", expected a whole number',
    ]


def test_a_check_keeps_its_index_when_an_earlier_item_is_mistaken(tmp_path: Path) -> None:
    text = edited(
        "  - {name: oom, max: 0}", "  - 7\n  - {name: oom, max: 0}\n  - {name: oom, max: 0}"
    )
    assert mistakes_in(tmp_path, text) == [
        "33:5: gates[1]: found the number 7, expected a mapping",
        '35:12: gates[3].name: found "oom" again, expected each gate once',
    ]


def test_callers_checks_are_made_and_located() -> None:
    def check(_: ArtifactDocument) -> list[Mistake]:
        return [Mistake(("gates", 1, "name"), "found oom"), Mistake(("nowhere",), "found nothing")]

    found = inspect_artifact(DATA / "valid.yaml", [check])
    assert found.artifact is None
    assert [
        (m.position.line, m.position.column, m.where) for m in found.mistakes if m.position
    ] == [
        (2, 1, "nowhere"),
        (33, 12, "gates[1].name"),
    ]


def test_an_eager_rung_in_an_eager_artifact_is_no_mistake(tmp_path: Path) -> None:
    text = edited(
        "graph: {mode: FULL_AND_PIECEWISE, capture_sizes: [1, 2, 4, 8, 12, 16, 24, 32, 48]}",
        "graph: {mode: NONE}",
    )
    assert mistakes_in(tmp_path, text) == []


def test_speculation_compares_tokens_with_the_largest_size(tmp_path: Path) -> None:
    speculative = "attention_backend: FLASH_ATTN\n  speculative: "
    few = edited(
        "attention_backend: FLASH_ATTN",
        speculative + "{method: ngram, num_speculative_tokens: 3}",
    ).replace("decode_buckets: [1, 8, 48]", "decode_buckets: [1, 7, 12]")
    assert mistakes_in(tmp_path, few) == []
    assert "decode_buckets[2]: found 13" in mistakes_in(tmp_path, few.replace("7, 12", "7, 13"))[0]
