"""Traffic from files: the published forms, replay, and mistakes by file and line."""

from pathlib import Path

import pytest

from canaryctl.common.errors import InputError
from canaryctl.runtimes.grid.calibration import packaged
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Distribution, Kind
from canaryctl.runtimes.grid.replay import replay
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.grid.traces import read_counts, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.5000000,110,0
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 7319, "output_length": 490, "hash_ids": [0]}
"""
PLAIN = "arrival,input_tokens,output_tokens\n10.5,5,6\n10,7,8\n"


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azures_form(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "azure.csv", AZURE))
    assert [(r.input_tokens, r.output_tokens, r.line) for r in trace.requests] == [
        (4808, 10, 2),
        (3180, 8, 3),
    ]
    assert trace.requests[1].arrival_s == pytest.approx(0.052)
    assert trace.begins == pytest.approx(18 * 3600 + 17 * 60 + 3.97996, abs=1e-3)


def test_mooncakes_form(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "trace.jsonl", MOONCAKE))
    assert [(r.arrival_s, r.input_tokens, r.line) for r in trace.requests] == [
        (0.0, 6755, 1),
        (3.0, 7319, 3),
    ]
    assert trace.begins is None


def test_the_plain_form_is_sorted_by_arrival(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "plain.csv", PLAIN))
    assert [(r.arrival_s, r.output_tokens) for r in trace.requests] == [(0.0, 8), (0.5, 6)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "when,what\n1,2\n", r"a\.csv:2: found the fields when, what; expected one of"),
        ("b.csv", AZURE.replace("3180", "-1"), r"b\.csv:3: ContextTokens is '-1', expected"),
        ("c.csv", AZURE.replace("2023-11-16 18:17:04", "yesterday"), r"c\.csv:3: TIMESTAMP is"),
        ("d.csv", AZURE.replace(",3180,8", ",3180"), r"d\.csv:3: expected 3 values"),
        ("e.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", r"e\.csv: found no request"),
        ("f.csv", "arrival,input_tokens,output_tokens\n1,2,0\n", "no request generated a token"),
        ("g.jsonl", '{"timestamp": 0}\n[1]\n', r"g\.jsonl:2: found '\[1\]', expected an object"),
        ("h.jsonl", MOONCAKE + "{", r"h\.jsonl:4: not JSON"),
        ("i.jsonl", MOONCAKE.replace("490", "true"), r"i\.jsonl:3: output_length is True"),
        ("j.jsonl", MOONCAKE.replace("3000", '"x"'), r"j\.jsonl:3: timestamp is 'x'"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read_trace(written(tmp_path, name, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_counts(tmp_path: Path) -> None:
    plain = read_counts(written(tmp_path, "plain.csv", "size,count\n4,10\n4,1\n9,0\n2,5\n"))
    assert plain.kinds == {Kind.SCHEDULED_TOKENS: Distribution((2, 4), (5, 11))}
    text = "kind,size,count\ndecode_sequences,3,7\nmixed_tokens,100,2\n"
    told = read_counts(written(tmp_path, "told.csv", text))
    assert told.of(Kind.DECODE_SEQUENCES) == Distribution((3,), (7,))
    assert told.of(Kind.MIXED_TOKENS) == Distribution((100,), (2,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("size,count\n0,3\n", r"c\.csv:2: size is '0', expected a whole number from 1"),
        ("size,count\n1,many\n", r"c\.csv:2: count is 'many'"),
        ("sizes,count\n1,2\n", r"c\.csv:2: found sizes, count, expected size,count"),
        ("kind,size,count\ndecodes,1,2\n", r"c\.csv:2: unknown kind 'decodes'"),
        ("size,count\n", r"c\.csv: found no counts"),
    ],
)
def test_wrong_counts_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_counts(written(tmp_path, "c.csv", text))


def test_replayed_shapes_add_up(tmp_path: Path) -> None:
    rows = [f"{k * 0.004},{100 + k},{10 + k % 5}" for k in range(200)]
    text = "\n".join(["arrival,input_tokens,output_tokens", *rows]) + "\n"
    cost, rules = CostModel(packaged()), EngineRules(32, 512)
    trace = read_trace(written(tmp_path, "t.csv", text))
    found = replay(trace, cost, rules, kv_tokens=100_000)
    again = replay(trace, cost, rules, kv_tokens=100_000)
    assert found == again
    decode, mixed = found.of(Kind.DECODE_SEQUENCES), found.of(Kind.MIXED_TOKENS)
    scheduled, prefill = found.of(Kind.SCHEDULED_TOKENS), found.of(Kind.PREFILL_TOKENS)
    assert scheduled.total == decode.total + mixed.total
    assert scheduled.tokens == decode.tokens + mixed.tokens
    assert prefill.tokens == sum(100 + k for k in range(200))
    generated = sum(10 + k % 5 for k in range(200))
    assert decode.tokens + mixed.tokens - prefill.tokens == generated - 200
    assert decode.sizes[-1] <= 32
    assert mixed.sizes[-1] <= 512


def test_hours_of_the_day_are_told_apart(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 20:00:00.0,50,5\n"
    trace = read_trace(written(tmp_path, "azure.csv", text))
    found = replay(trace, CostModel(packaged()), EngineRules(32, 8192), kv_tokens=100_000)
    assert list(found.by_hour) == [18, 20]
    assert found.by_hour[20][Kind.DECODE_SEQUENCES] == Distribution((1,), (4,))


def test_a_request_that_no_cache_can_hold_is_named_by_its_line(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "azure.csv", AZURE))
    with pytest.raises(InputError, match=r"azure\.csv:2: the request needs 4818 tokens"):
        replay(trace, CostModel(packaged()), EngineRules(32, 8192), kv_tokens=4000)
