"""The typed ``runtime`` section of an artifact: everything the digest is made of.

What changes graphs, memory or outputs is a field here; other engine options go through
``engine.args``. Every model is frozen and refuses unknown keys.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Sizes = Annotated[tuple[PositiveInt, ...], Field(max_length=4096)]
Scalar = StrictStr | StrictInt | StrictFloat | StrictBool


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GraphMode(StrEnum):
    """vLLM's CUDA graph modes."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


class EngineSpec(_Frozen):
    """Which engine, which version, how to start it. At most one of command, image, venv."""

    name: str
    version: str
    torch: str | None = None
    command: tuple[str, ...] | None = None  # the argv before the adapter's own arguments
    image: str | None = None
    venv: str | None = None  # a virtual environment whose python runs the engine
    args: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)  # --name value
    env: dict[str, str] = Field(default_factory=dict)
    volumes: tuple[str, ...] = ()


class CudaSpec(_Frozen):
    toolkit: str | None = None  # "13.0"
    driver: str | None = None  # a constraint: ">=580.65"


class GpuSpec(_Frozen):
    """GPUs of one instance. ``count: 0`` runs without one."""

    model: str | None = None  # a substring of the device's name
    count: Annotated[int, Field(ge=0, strict=True)] = 1
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    share: bool = False  # may share its GPU with instances that allow it too


class ParallelSpec(_Frozen):
    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    expert: PositiveInt = 1


class ModelSpec(_Frozen):
    id: str  # a hub name or a path
    revision: str | None = None
    tokenizer: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    lora: tuple[str, ...] = ()


class GraphSpec(_Frozen):
    mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    capture_sizes: Sizes | None = None  # None: the engine's own default grid


class LimitsSpec(_Frozen):
    max_num_seqs: PositiveInt = 256
    max_num_batched_tokens: PositiveInt = 8192
    max_model_len: PositiveInt = 4096


class SpeculativeSpec(_Frozen):
    method: str
    num_speculative_tokens: PositiveInt
    model: str | None = None


class WarmupPlan(_Frozen):
    """Every bucket is run ``repeat_per_bucket`` times before ready.

    ``decode_buckets``: concurrent sequences; ``mixed_token_buckets``: tokens of one step.
    """

    decode_buckets: Sizes = ()
    mixed_token_buckets: Sizes = ()
    repeat_per_bucket: PositiveInt = 3
    block_ready_until_complete: bool = True


class MemorySpec(_Frozen):
    safety_margin_gib: Annotated[float, Field(ge=0)] = 2.0


class RuntimeSpec(_Frozen):
    """A runtime, complete: two equal ones are the same artifact."""

    engine: EngineSpec
    cuda: CudaSpec = CudaSpec()
    gpu: GpuSpec = GpuSpec()
    parallel: ParallelSpec = ParallelSpec()
    model: ModelSpec
    attention_backend: str | None = None
    graph: GraphSpec = GraphSpec()
    limits: LimitsSpec = LimitsSpec()
    speculative: SpeculativeSpec | None = None
    warmup_plan: WarmupPlan = WarmupPlan()
    memory: MemorySpec = MemorySpec()

    @property
    def uses_graphs(self) -> bool:
        return self.graph.mode is not GraphMode.NONE

    def as_document(self) -> dict[str, Any]:
        """JSON types only, defaults included: what the digest is computed from."""
        return self.model_dump(mode="json")
