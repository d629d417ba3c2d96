"""The H200 benchmark: its client against a small server, its artifacts, its page."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_client import Answer, Cell, over_repeats, quantiles, run_cell, spread
from benchmarks._h200_options import STEPS, parse
from benchmarks._h200_table import page
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.controller.cli.checks import document_checks
from canaryctl.runtimes.load.profile import parse_profile

EVENT = 'data: {"id":"cmpl-1","choices":[{"text":"a"}]}\n\n'


@contextmanager
def server(chunks: list[bytes], status: str = "200 OK", pause_s: float = 0.0) -> Iterator[str]:
    """Answers every request with ``chunks``, so far apart."""
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.close()

    listening = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(listening.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def cell(url: str, tokens: int, concurrency: int = 1) -> dict[str, object]:
    return run_cell(
        url, "chat", concurrency=concurrency, seconds=0, prompt_tokens=4, output_tokens=tokens
    ).as_document()


def test_events_are_counted_once_wherever_reads_cut_them() -> None:
    whole = (EVENT * 3 + "data: [DONE]\n\n").encode()
    for cut in range(1, len(whole), 7):
        with server([whole[:cut], whole[cut:]], pause_s=0.005) as url:
            answers = run_cell(
                url, "chat", concurrency=1, seconds=0, prompt_tokens=4, output_tokens=3
            ).answers
        assert [(a.events, a.failure) for a in answers] == [(3, None)], cut
        assert len(answers[0].gaps_s) == 2, cut


def test_a_stream_that_ends_early_and_a_refusal_are_failures_and_no_latencies() -> None:
    with server([EVENT.encode()]) as url:
        early = cell(url, 2)
    with server([b"no"], status="503 Service Unavailable") as url:
        refused = cell(url, 2, concurrency=2)
    assert (early["failed"], early["ttft_s"], early["tokens_per_s"]) == (1, None, 0)
    assert early["failures"] == ["the stream ended early"]
    assert refused["failed"] == 2
    assert refused["failures"] == ["answered HTTP/1.1 503 Service Unavailable"]


def test_tpot_is_decode_time_by_tokens() -> None:
    answer = Answer(sent=10.0)
    answer.take(1, 10.5)
    answer.take(3, 10.75)
    answer.take(1, 11.5)
    found = Cell(1, 5, 2.0, (answer,)).as_document()
    assert found["tpot_s"] == {"p50": 0.25, "p95": 0.25, "p99": 0.25}
    assert found["ttft_s"] == {"p50": 0.5, "p95": 0.5, "p99": 0.5}
    assert found["itl_s"] == {"p50": 0.0, "p95": 0.75, "p99": 0.75}
    assert found["tokens_per_s"] == 2.5


def test_quantiles_are_nearest_rank_and_spread_leaves_out_what_is_missing() -> None:
    assert quantiles(range(1, 101)) == {"p50": 50, "p95": 95, "p99": 99}
    assert quantiles([]) is None
    assert spread([None, 3.0, 1.0]) == {"median": 2.0, "least": 1.0, "most": 3.0, "n": 2}
    assert spread([None]) is None


@pytest.mark.parametrize("gpu", [True, False])
def test_every_artifact_and_load_is_valid(tmp_path: Path, gpu: bool) -> None:
    engine = (
        artifacts.gpu_engine(
            ["python3"], "/site", tmp_path, tmp_path, fraction=0.2, warm=[1, 8, 32]
        )
        if gpu
        else artifacts.cpu_engine(tmp_path, tmp_path)
    )
    artifacts.write_loads(tmp_path, gpu=gpu)
    documents = [artifacts.first(engine), artifacts.graphs(engine), artifacts.nine_measured(engine)]
    if gpu:
        documents += [
            artifacts.nine(engine, "1"),
            artifacts.oom_capture(engine, kv_cache_bytes=100 * 2**30, attempt=1),
        ]
    for document in documents:
        load_artifact(artifacts.write(tmp_path, document), document_checks())
    for profile in ("first.yaml", "users.yaml", "many.yaml"):
        parse_profile((tmp_path / profile).read_text())


def test_another_warm_up_is_another_version(tmp_path: Path) -> None:
    engine = artifacts.cpu_engine(tmp_path, tmp_path).warmed_least()
    document = artifacts.first(engine)
    assert document["version"] == "1.least"
    assert document["runtime"]["warmup_plan"]["decode_buckets"] == [1]


def test_the_shared_runtime_is_not_changed_by_its_variants(tmp_path: Path) -> None:
    engine = artifacts.gpu_engine(
        ["python3"], "", tmp_path, tmp_path, fraction=0.2, warm=[1, 8, 32]
    )
    artifacts.oom_capture(engine, kv_cache_bytes=1, attempt=1)
    assert "kv-cache-memory-bytes" not in engine.runtime["engine"]["args"]
    assert engine.runtime["graph"] == {"mode": "NONE"}


def test_the_page_tells_what_was_not_run(tmp_path: Path) -> None:
    engine = artifacts.cpu_engine(tmp_path, tmp_path)
    latency = {"p50": 0.001, "p95": 0.002, "p99": 0.003}
    one: dict[str, Any] = {"requests": 2, "failed": 0, "tokens_per_s": 50.0}
    one |= {"ttft_s": latency, "tpot_s": latency, "itl_s": latency}
    results = {
        "machine": {"gpus": [], "driver": None, "cpus": 2, "python": "3.12", "engine": "vLLM"},
        "settings": {
            "runtime": engine.runtime,
            "fraction": 0.2,
            "prompt_tokens": 64,
            "output_tokens": 128,
            "repeats": 2,
            "cell_s": 3.0,
        },
        "steps": {"oom": {"not_run": "needs CUDA graphs", "as_expected": None}},
        "cells": {"eager/8": [one, {**one, "tokens_per_s": 70.0}]},
    }
    text = page(results)
    assert "| eager | 8 | 4 | 60 (50–70) | 1.0 | 2.0 | 3.0 |" in text
    assert "oom: needs CUDA graphs" in text
    assert over_repeats([one, one])["requests"] == 4


def test_steps_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--steps", "first,oom"], "")[0].steps == ("first", "oom")
    assert parse([], "")[0].steps == STEPS
    with pytest.raises(SystemExit):
        parse(["--steps", "frist"], "")
    assert "frist" in capsys.readouterr().err
