"""A load profile: what is asked, how often, for how long. Pure: text in, profile or errors out."""

from enum import StrEnum
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from canaryctl.common.errors import InputError
from canaryctl.common.units import Seconds

_MAX_BYTES = 64 * 1024

Rate = Annotated[float, Field(gt=0, le=10_000, strict=True)]
Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


class ProfileError(InputError):
    """A load profile is wrong; ``mistakes`` names all of them."""

    def __init__(self, source: str, mistakes: list[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{source}: {mistake}" for mistake in mistakes))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Range(_Frozen):
    """Tokens, uniformly from ``min`` to ``max``, both included."""

    min: Count
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class PromptKind(StrEnum):
    TOKEN_IDS = "token_ids"  # noqa: S105  lists of token ids: needs no tokenizer
    TEXT = "text"  # one ASCII letter for each token: exact for byte-level tokenizers


class Phase(_Frozen):
    """A part of the run with a rate of its own, and token ranges where given."""

    rate: Rate
    duration: Seconds = Field(alias="for")
    prompt_tokens: Range | None = None
    output_tokens: Range | None = None


class Profile(_Frozen):
    """Requests arrive as a Poisson process, whether earlier ones have been answered or not.

    Either ``rate``, or ``phases`` that follow each other and begin anew until the run is over.
    """

    rate: Rate | None = None  # requests per second
    phases: tuple[Phase, ...] = ()
    duration: Seconds | None = Field(default=None, alias="for")
    requests: Count | None = None  # ends the run after so many
    seed: Annotated[int, Field(strict=True)] = 0
    prompt_tokens: Range = Range(min=8, max=64)
    output_tokens: Range = Range(min=8, max=24)
    prompt: PromptKind = PromptKind.TOKEN_IDS
    vocabulary: Count = 200  # token ids are below it: every tokenizer has so many
    sessions: Annotated[int, Field(ge=0, strict=True)] = 0  # 0: no session header
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")] = "x-session-id"
    stream: Annotated[bool, Field(strict=True)] = True
    ignore_eos: Annotated[bool, Field(strict=True)] = True  # the output is as long as asked for
    max_concurrency: Count = 512  # open requests per target; beyond it the client is saturated
    timeout: Seconds = 60.0  # of a whole request

    @model_validator(mode="after")
    def _rate_or_phases(self) -> Self:
        if (self.rate is None) == (not self.phases):
            raise ValueError("give exactly one of rate and phases")
        if any(phase.duration <= 0 for phase in self.phases):
            raise ValueError("each phase needs a duration above zero")
        if self.timeout <= 0 or (self.duration is not None and self.duration <= 0):
            raise ValueError("for and timeout need a duration above zero")
        return self

    def with_seed(self, seed: int) -> Self:
        """With ``seed`` where the profile names none: a run that asks what an earlier one asked
        finds its prompts in the caches of engines that were there, and of no other."""
        return self if "seed" in self.model_fields_set else self.model_copy(update={"seed": seed})


def parse_profile(text: str, source: str = "profile") -> Profile:
    """The profile written in YAML; :class:`ProfileError` lists every mistake."""
    if len(text.encode()) > _MAX_BYTES:
        raise ProfileError(source, [f"longer than {_MAX_BYTES} bytes, which no profile is"])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ProfileError(source, ["empty; expected at least a rate, such as rate: 20"])
        if mistakes := _structure_mistakes(root):
            raise ProfileError(source, mistakes)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ProfileError(source, [f"not YAML: {error}"]) from error
    if not isinstance(document, dict):
        raise ProfileError(source, ["expected a mapping, such as rate: 20"])
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise ProfileError(source, [_explain(item) for item in error.errors()]) from error


def _structure_mistakes(root: yaml.Node) -> list[str]:
    """Aliases, which can make a small file endless, and keys given twice, of which YAML keeps
    the last without a word."""
    mistakes: list[str] = []
    seen: set[int] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        where = f"line {node.start_mark.line + 1}"
        if id(node) in seen:
            return [f"{where}: an alias; write the value out where it is used"]
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            mistakes += [
                f"{where}: {key} is given twice" for key in sorted(set(keys)) if keys.count(key) > 1
            ]
            nodes += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
    return mistakes


def _explain(item: ErrorDetails) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = ", ".join(field.alias or name for name, field in Profile.model_fields.items())
        return f"{where}: unknown key" + (f"; one of: {known}" if len(item["loc"]) == 1 else "")
    message = item["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
