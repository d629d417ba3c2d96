"""A log that grows: every start-up fact, every trouble, and no more memory than that."""

import time
from pathlib import Path

import pytest

from canaryctl.runtimes import logtail
from canaryctl.runtimes.logtail import HEAD_BYTES, LAST_LINES, LINE_BYTES, PER_KIND, LogTail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_a_file_that_is_not_there_yet_has_no_lines(log: Path) -> None:
    tail = LogTail(log)
    assert tail.lines() == ()
    append(log, b"first\n")
    assert tail.lines() == ("first",)


def test_lines_accumulate_and_a_partial_one_waits_for_its_end(log: Path) -> None:
    tail = LogTail(log)
    append(log, b"one\ntw")
    assert tail.lines() == ("one",)
    append(log, b"o\nthree")
    assert tail.lines() == ("one", "two")
    append(log, b"\n")
    assert tail.lines() == ("one", "two", "three")


def test_a_character_cut_in_two_by_a_read_is_whole(log: Path) -> None:
    tail = LogTail(log)
    euro = "€".encode()
    append(log, euro[:1])
    tail.lines()
    append(log, euro[1:] + b"\n")
    assert tail.lines() == ("€",)


def test_bytes_that_are_no_text_are_replaced(log: Path) -> None:
    append(log, b"\xff\xfe bad \x00\n")
    assert LogTail(log).lines() == ("�� bad \x00",)


def test_progress_bars_are_lines(log: Path) -> None:
    append(log, b"Capturing: 0%\rCapturing: 100%\rGraph capturing finished\r\n\n")
    assert LogTail(log).lines() == ("Capturing: 0%", "Capturing: 100%", "Graph capturing finished")


def test_after_truncation_reading_begins_anew_and_keeps_what_it_knew(log: Path) -> None:
    tail = LogTail(log)
    append(log, b"loaded\npart")
    tail.lines()
    log.write_bytes(b"new\n")
    assert tail.lines() == ("loaded", "new")


def test_a_replaced_file_is_read_from_its_start(log: Path) -> None:
    tail = LogTail(log)
    append(log, b"old\n")
    tail.lines()
    other = log.with_name("other")
    other.write_bytes(b"a longer new line\n")
    other.replace(log)
    assert tail.lines() == ("old", "a longer new line")


def filled(log: Path) -> LogTail:
    append(log, b"start-up fact\n" + b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * (HEAD_BYTES // 100))
    tail = LogTail(log)
    assert tail.lines()[0] == "start-up fact"
    return tail


def test_after_the_head_trouble_and_the_last_lines_are_kept(log: Path) -> None:
    tail = filled(log)
    append(log, b"INFO early chatter\ntorch.OutOfMemoryError: CUDA out of memory\n")
    late = "INFO [cuda_graph.py:251] Capturing a cudagraph on (FULL,BatchDescriptor(num_tokens=8))"
    append(log, late.encode() + b"\n")
    append(log, b"INFO chatter\n" * LAST_LINES + b"EngineCore died\n")
    lines = tail.lines()
    assert lines[0] == "start-up fact"
    assert "INFO early chatter" not in lines
    assert lines.count("torch.OutOfMemoryError: CUDA out of memory") == 1
    assert lines[-1] == "EngineCore died"
    assert lines.count(late) == 1
    assert lines.index("torch.OutOfMemoryError: CUDA out of memory") < len(lines) - 1


def test_a_flood_of_errors_does_not_displace_an_out_of_memory(log: Path) -> None:
    tail = filled(log)
    append(log, b"ERROR\tRuntimeError: flood\n" * (3 * PER_KIND))
    append(log, b"CUDA error: out of memory\n")
    append(log, b"ERROR\tRuntimeError: flood\n" * (3 * PER_KIND))
    lines = tail.lines()
    assert "CUDA error: out of memory" in lines
    assert len(lines) < HEAD_BYTES // 100 + 3 + 2 * PER_KIND + LAST_LINES


def test_a_line_without_end_takes_no_more_than_its_room(log: Path) -> None:
    append(log, b"z" * (5 * 1024 * 1024))
    tail = LogTail(log)
    assert tail.lines() == ()
    append(log, b"end\nnext\n")
    assert [len(line) for line in tail.lines()] == [LINE_BYTES, 4]


def test_a_long_backlog_is_read_over_several_calls(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logtail, "READ_BYTES", 1024 * 1024)
    append(log, b"INFO chatter\n" * 250_000 + b"out of memory\n")
    tail = LogTail(log)
    assert "out of memory" not in tail.lines()
    for _ in range(4):
        tail.lines()
    assert tail.lines()[-1] == "out of memory"


def test_a_hundred_megabytes_read_once_cost_a_tick_nothing(log: Path) -> None:
    append(log, (b"INFO " + b"c" * 1018 + b"\n") * 100_000)
    tail = LogTail(log)
    for _ in range(16):
        tail.lines()
    append(log, b"RuntimeError: last\n")
    begun = time.perf_counter()
    assert tail.lines()[-1] == "RuntimeError: last"
    assert time.perf_counter() - begun < 0.5
