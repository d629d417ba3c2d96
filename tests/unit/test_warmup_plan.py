"""From a warm-up plan to requests: every bucket reachable, or named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.errors import InputError
from canaryctl.runtimes.replays import BucketKind
from canaryctl.runtimes.spec import LimitsSpec, WarmupPlan
from canaryctl.runtimes.warmup import WarmupPlanError, plan_requests

LIMITS = LimitsSpec(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=512)


def plan(decode: tuple[int, ...] = (), mixed: tuple[int, ...] = (), repeat: int = 3) -> WarmupPlan:
    return WarmupPlan(decode_buckets=decode, mixed_token_buckets=mixed, repeat_per_bucket=repeat)


def test_every_bucket_is_planned_the_asked_number_of_times() -> None:
    batches = plan_requests(plan((4, 1, 32), (64, 512)), LIMITS)
    assert [(batch.kind.value, batch.bucket, batch.repeat) for batch in batches] == [
        (kind, bucket, repeat)
        for kind, buckets in (("decode", (1, 4, 32)), ("mixed", (64, 512)))
        for bucket in buckets
        for repeat in (1, 2, 3)
    ]
    assert batches[0].title == "decode bucket 1 (sequences), run 1"


def test_an_empty_plan_needs_no_request() -> None:
    assert plan_requests(plan(), LIMITS) == ()


def test_a_bucket_named_twice_is_one() -> None:
    assert len(plan_requests(plan((2, 2), repeat=1), LIMITS)) == 1


def test_a_decode_bucket_is_that_many_sequences_with_room_to_meet() -> None:
    (batch,) = plan_requests(plan((48,), repeat=1), LIMITS)
    assert batch.decodes == 48
    assert batch.prefills == ()
    assert batch.prompt_tokens < 16  # less than a block of the prefix cache
    assert batch.output_tokens > 48


def test_a_mixed_bucket_is_decodes_and_one_prefill_of_the_rest() -> None:
    (batch,) = plan_requests(plan(mixed=(256,), repeat=1), LIMITS)
    assert batch.decodes + sum(batch.prefills) == 256
    assert len(batch.prefills) == 1
    assert batch.decodes >= 1


def test_a_prefill_longer_than_the_model_is_several() -> None:
    (batch,) = plan_requests(plan(mixed=(2048,), repeat=1), LIMITS)
    assert batch.decodes + sum(batch.prefills) == 2048
    assert len(batch.prefills) == 5
    assert max(batch.prefills) < 512


def test_outputs_are_clipped_to_the_models_length() -> None:
    short = LimitsSpec(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=32)
    (batch,) = plan_requests(plan((64,), repeat=1), short)
    assert batch.prompt_tokens + batch.output_tokens == 32


@pytest.mark.parametrize(
    ("decode", "mixed", "limits", "named"),
    [
        ((65,), (), LIMITS, "decode bucket 65: max_num_seqs lets 64"),
        ((), (4096,), LIMITS, "mixed bucket 4096: max_num_batched_tokens lets a step have 2048"),
        ((), (1,), LIMITS, "mixed bucket 1: a mixed step has"),
        ((), (8,), LimitsSpec(max_num_seqs=1), "two sequences at least"),
        (
            (),
            (2048,),
            LimitsSpec(max_num_seqs=4, max_num_batched_tokens=2048, max_model_len=512),
            "exceed max_num_seqs 4",
        ),
        ((1,), (), LimitsSpec(max_model_len=8), "decode bucket 1: max_model_len 8"),
        ((), (4,), LimitsSpec(max_model_len=8), "mixed bucket 4: max_model_len 8"),
    ],
)
def test_what_the_limits_make_unreachable_is_named(
    decode: tuple[int, ...], mixed: tuple[int, ...], limits: LimitsSpec, named: str
) -> None:
    with pytest.raises(WarmupPlanError) as raised:
        plan_requests(plan(decode, mixed), limits)
    assert named in str(raised.value)
    assert isinstance(raised.value, InputError)


def test_every_unreachable_bucket_is_named_at_once() -> None:
    with pytest.raises(WarmupPlanError) as raised:
        plan_requests(plan((1, 65, 128), (64, 4096)), LIMITS)
    message = str(raised.value)
    assert all(name in message for name in ("bucket 65", "bucket 128", "bucket 4096"))
    assert "decode bucket 1:" not in message


@given(
    decode=st.sets(st.integers(1, 600), max_size=4),
    mixed=st.sets(st.integers(1, 9000), max_size=4),
    limits=st.builds(
        LimitsSpec,
        max_num_seqs=st.integers(1, 512),
        max_num_batched_tokens=st.integers(1, 8192),
        max_model_len=st.integers(1, 4096),
    ),
)
def test_no_batch_asks_for_more_than_the_limits_allow(
    decode: set[int], mixed: set[int], limits: LimitsSpec
) -> None:
    try:
        batches = plan_requests(plan(tuple(decode), tuple(mixed), repeat=1), limits)
    except WarmupPlanError:
        return
    assert len(batches) == len(decode) + len(mixed)
    for batch in batches:
        assert batch.decodes + len(batch.prefills) <= limits.max_num_seqs
        assert batch.prompt_tokens + batch.most_output_tokens <= limits.max_model_len
        assert 1 <= batch.output_tokens <= batch.most_output_tokens
        assert all(1 <= tokens < limits.max_model_len for tokens in batch.prefills)
        if batch.kind is BucketKind.MIXED:
            assert batch.decodes + sum(batch.prefills) == batch.bucket
            assert batch.bucket <= limits.max_num_batched_tokens
        else:
            assert batch.decodes == batch.bucket
