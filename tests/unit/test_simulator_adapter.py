"""The adapter of the simulated engine, its arguments, its faults and its request bodies."""

import json
from typing import Any

import pytest

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.common.metrics import Signal
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.engines.simulated import SimulatedEngine
from canaryctl.runtimes.simulator.config import SimulatorArgs, SimulatorConfig
from canaryctl.runtimes.simulator.faults import ActiveFaults, Fault, FaultRequest, parse_faults
from canaryctl.runtimes.simulator.requests import RequestError, parse_generation
from canaryctl.runtimes.simulator.text import Answer, count_tokens, wrong
from canaryctl.runtimes.spec import GraphMode, RuntimeSpec

ENGINE = SimulatedEngine()
CONFIG = SimulatorConfig(model="m", version="1", max_model_len=100)


def make_spec(args: dict[str, Any] | None = None, **sections: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(
        {
            "engine": {"name": "simulated", "version": "0.25.1", "args": args or {}},
            "model": {"id": "Qwen/Qwen3-0.6B", "revision": "abc"},
            **sections,
        }
    )


def test_it_is_an_engine_that_says_it_is_simulated() -> None:
    engine: Engine = ENGINE
    assert (engine.name, engine.simulated) == ("simulated", True)
    assert engine.model_name(make_spec()) == "simulated/Qwen/Qwen3-0.6B"
    assert engine.health_path() == "/health"
    assert set(engine.metrics("0.25.1")) == set(Signal)


def test_a_plain_spec_has_no_fault() -> None:
    assert ENGINE.check(make_spec()) == []
    args = {"seed": 3, "fault": ("slow_tail", "slow"), "fault_at": "running", "fault_after_s": 5}
    assert ENGINE.check(make_spec(args)) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"sed": 1}, "unknown simulated engine argument 'sed'; one of: fault"),
        ({"seed": "one"}, "seed is 'one', expected a whole number from 0"),
        ({"seed": True}, "seed is True"),
        ({"time_scale": -1.0}, "time_scale is -1.0, expected a number from 0 to 100"),
        ({"fault": "slwo"}, "unknown fault 'slwo'; one of: counter_reset"),
        ({"fault": 3}, "fault is 3, expected one name"),
        ({"fault": "slow", "fault_at": "noon"}, "expected start or running"),
        ({"fault": "slow", "fault_after_s": 2.0}, "needs fault_at: running"),
        ({"fault": "small_kv", "fault_at": "running"}, "small_kv needs fault_at: start"),
        ({"fault": "counter_reset"}, "counter_reset needs fault_at: running"),
        ({"fault_factor": 2.0}, "fault_factor without fault"),
    ],
)
def test_wrong_arguments_are_named_with_what_is_allowed(args: dict[str, Any], said: str) -> None:
    problems = ENGINE.check(make_spec(args))
    assert len(problems) == 1
    assert problems[0].startswith("engine.args: ")
    assert said in problems[0]
    with pytest.raises(InputError):
        ENGINE.launch(make_spec(args), host="127.0.0.1", port=1)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"graph": {"capture_sizes": [1, 9000]}}, "9000 exceed max_num_batched_tokens (8192)"),
        ({"graph": {"capture_sizes": []}}, "capture_sizes is empty"),
        ({"warmup_plan": {"decode_buckets": [8, 512]}}, "512 exceed max_num_seqs (256)"),
        ({"warmup_plan": {"mixed_token_buckets": [9000]}}, "9000 exceed max_num_batched_tokens"),
        ({"speculative": {"method": "eagle", "num_speculative_tokens": 2}}, "speculative is"),
        ({"parallel": {"tensor": 2}}, "parallel.tensor is 2"),
        ({"model": {"id": "m", "quantization": "fp8"}}, "model.quantization is 'fp8'"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(sections: dict[str, Any], said: str) -> None:
    problems = ENGINE.check(make_spec(**sections))
    assert len(problems) == 1
    assert said in problems[0]


def test_all_faults_of_a_spec_are_named_at_once() -> None:
    spec = make_spec({"sed": 1, "jitter": 9}, parallel={"tensor": 2, "expert": 4})
    assert len(ENGINE.check(spec)) == 4


def test_launch_carries_the_spec_into_the_server() -> None:
    spec = make_spec(
        {"seed": 7, "fault": ("slow", "hang"), "fault_factor": 2},
        graph={"mode": "PIECEWISE", "capture_sizes": [1, 2, 4]},
        limits={"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 32},
        gpu={"memory_fraction": 0.5},
    )
    launch = ENGINE.launch(spec, host="127.0.0.1", port=8123)
    assert launch.argv[1:3] == ("-m", "canaryctl.runtimes.simulator")
    assert launch.argv[3:7] == ("--host", "127.0.0.1", "--port", "8123")
    assert SimulatorConfig.from_json(launch.argv[-1]) == SimulatorConfig(
        model="Qwen/Qwen3-0.6B",
        version="0.25.1",
        revision="abc",
        graph_mode="PIECEWISE",
        capture_sizes=(1, 2, 4),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=32,
        memory_fraction=0.5,
        args=SimulatorArgs(seed=7, fault="slow,hang", fault_factor=2),
    )


def test_a_command_takes_the_place_of_this_python() -> None:
    engine = {"name": "simulated", "version": "1", "command": ["run-it"], "env": {"A": "b"}}
    launch = ENGINE.launch(make_spec(engine=engine), host="::1", port=1)
    assert launch.argv[:3] == ("run-it", "--host", "::1")
    assert launch.env == {"A": "b"}


def test_the_eager_form_has_no_graphs_and_no_eager_form_itself() -> None:
    spec = make_spec(graph={"capture_sizes": [1, 2]}, warmup_plan={"decode_buckets": [1, 2]})
    eager = ENGINE.eager(spec)
    assert eager.graph.mode is GraphMode.NONE
    assert ENGINE.resolved_grid(eager) == ()
    assert ENGINE.check(eager) == []
    assert eager.model_copy(update={"graph": spec.graph}) == spec
    with pytest.raises(InputError, match="no eager form"):
        ENGINE.eager(eager)


def test_the_resolved_grid_is_the_engines_own_by_default() -> None:
    assert len(ENGINE.resolved_grid(make_spec())) == 51
    assert ENGINE.resolved_grid(make_spec(graph={"capture_sizes": [4, 1]})) == (1, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"model": "m"}', "lacks version"),
        ('{"model": "m", "version": "1", "modle": 1}', "unknown configuration field 'modle'"),
        ('{"model": "m", "version": "1", "graph_mode": "FUL"}', "unknown graph mode 'FUL'"),
        ('{"model": "m", "version": "1", "args": {"fault": "x"}}', "unknown fault 'x'"),
    ],
)
def test_a_wrong_configuration_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        SimulatorConfig.from_json(text)


def test_faults_are_parsed_by_name() -> None:
    assert parse_faults("slow_tail, hang") == (Fault.SLOW_TAIL, Fault.HANG)
    assert parse_faults("") == ()
    with pytest.raises(UnknownNameError):
        parse_faults(["slow", "fast"])


def test_a_fault_that_is_not_in_force_changes_nothing() -> None:
    faults = ActiveFaults({Fault.SLOW}, factor=None)
    assert faults.factor_of(Fault.SLOW) == 3.0
    assert faults.factor_of(Fault.SLOW_TAIL) == 1.0
    assert faults.slow_share == 0.0


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"fault": ["slow"]},
        {"faults": 3},
        {"faults": ["oom_capture"]},
        {"faults": ["slow"], "factor": 0},
        {"faults": ["slow_tail"], "share": 2},
        {"faults": ["slow"], "factor": True},
    ],
)
def test_a_wrong_switch_is_refused(document: object) -> None:
    with pytest.raises(InputError):
        FaultRequest.parse(document)


def parse(chat: bool = False, **document: Any) -> Any:
    return parse_generation(json.dumps(document).encode(), CONFIG, chat=chat)


def test_a_request_gets_openais_defaults() -> None:
    wanted = parse(prompt="a" * 40)
    assert (wanted.prompt_tokens, wanted.most, wanted.least) == (10, 16, 0)
    assert not wanted.stream
    chat = parse(chat=True, messages=[{"role": "user", "content": "hi"}])
    assert chat.most == 100 - chat.prompt_tokens
    assert parse(prompt=[[1, 2, 3]], model="m").prompt_tokens == 3
    assert parse(prompt=[1, 2, 3], model="simulated/m").prompt_tokens == 3


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        ({"prompt": "x", "model": "other"}, 404, "`other` does not exist"),
        ({"prompt": ""}, 400, "not empty"),
        ({"prompt": ["a", "b"]}, 400, "one text or one list"),
        ({"prompt": [1, True]}, 400, "list of token ids"),
        ({"prompt": "x", "max_tokens": 0}, 400, "expected a whole number from 1"),
        ({"prompt": "x", "max_tokens": 100}, 400, "maximum context length is 100"),
        ({"prompt": [1] * 100}, 400, "maximum context length is 100"),
        ({"prompt": "x", "min_tokens": 20}, 400, "expected at most 16"),
        ({"prompt": "x", "n": 2}, 400, "n is not simulated"),
        ({"prompt": "x", "stream": "yes"}, 400, "expected true or false"),
        ({"prompt": "x", "stream_options": {}}, 400, "needs stream"),
    ],
)
def test_a_wrong_request_is_refused(document: dict[str, Any], status: int, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        parse(**document)
    assert caught.value.status == status


def test_the_answer_depends_on_model_and_prompt_alone() -> None:
    def words(model: str, prompt: str) -> list[str]:
        answer = Answer(model, prompt)
        return [next(answer) for _ in range(20)]

    assert words("m", "hello") == words("m", "hello")
    assert words("m", "hello") != words("m", "hello!")
    assert words("m", "hello") != words("n", "hello")
    assert all(wrong(word) != word for word in words("m", "hello"))
    assert count_tokens("four") == 1
    assert count_tokens([7, 8]) == 2
