"""What pydantic says of a document, in the words of the file: found, expected, what to do."""

import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from canaryctl.controller.artifact.mistakes import Loc, Mistake, did_you_mean, dotted, quoted
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.artifact.secrets import names_a_secret

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_long": "at most {max_length} of them",
}
_KINDS = {str: "text", int: "a whole number"}


def mistakes_of(
    errors: Sequence[ErrorDetails], data: Any, values: Mapping[Loc, Any], plain: Mapping[Loc, str]
) -> list[Mistake]:
    """One mistake for each place. ``values``: the places that exist in ``data``; ``plain``:
    what was written there without quotes."""
    grouped: dict[Loc, list[ErrorDetails]] = {}
    for error in errors:
        grouped.setdefault(place_of(error, values), []).append(error)
    return [_mistake(loc, found, data, plain) for loc, found in grouped.items()]


def place_of(error: ErrorDetails, values: Mapping[Loc, Any]) -> Loc:
    """The error's place in the file: without the members of a union that pydantic names."""
    loc = error["loc"]
    if error["type"] == "missing":
        return loc
    while loc not in values and loc:
        loc = loc[:-1]
    return loc


def _mistake(
    loc: Loc, errors: Sequence[ErrorDetails], data: Any, plain: Mapping[Loc, str]
) -> Mistake:
    error = errors[0]
    if error["type"] == "missing":
        return Mistake(loc, f"missing, expected {_kind_of(loc)}")
    if error["type"] == "extra_forbidden":
        return Mistake(loc, _unknown_key(loc), at_key=True)
    value = _get(data, loc)
    if error["type"] == "value_error":
        return Mistake(loc, error["msg"].removeprefix("Value error, "))
    expected = _expectations(errors)
    if any(e["type"] in ("enum", "literal_error") for e in errors):
        names = _choices(loc)
        expected = ("one of " if len(names) > 1 else "") + ", ".join(names)
        if isinstance(value, str):
            expected += did_you_mean(value, names)
    if error["type"] == "string_pattern_mismatch":
        expected = str(fields_at(loc[:-1])[str(loc[-1])].description)
    written = plain.get(loc)
    if hides(loc):
        return Mistake(
            loc, f"found a value (not shown), expected {expected}; secrets go by reference only"
        )
    if "text" in expected and isinstance(value, bool | int | float) and written is not None:
        expected += f'; quote it: "{written}"'
    elif value is None:
        expected += "; give it, or leave the key out"
    return Mistake(loc, f"found {describe(value, written)}, expected {expected}")


def _expectations(errors: Sequence[ErrorDetails]) -> str:
    phrases = dict.fromkeys(_expectation(error) for error in errors)
    return " or ".join(phrases)


def _expectation(error: ErrorDetails) -> str:
    phrase = _EXPECTED.get(error["type"])
    return phrase.format_map(error.get("ctx", {})) if phrase else error["msg"]


def describe(value: Any, written: str | None) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            text = "true" if value else "false"
            return text if written in (None, text) else f"{written} (which YAML reads as {text})"
        case int() | float():
            return f"the number {written or value}"
        case str():
            return quoted(value)
        case list():
            return f"a list of {len(value)}"
    return "a mapping"


def hides(loc: Loc) -> bool:
    """Whether a value at this place must not be shown."""
    return any(isinstance(part, str) and names_a_secret(part) for part in loc) and (
        loc[:1] == ("secrets",) or loc[:2] == ("runtime", "engine")
    )


def _get(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data


def _unknown_key(loc: Loc) -> str:
    name, fields = str(loc[-1]), sorted(fields_at(loc[:-1]))
    advice = did_you_mean(name, fields)
    homes = _all_homes().get(name, [])
    if not advice and homes:
        advice = "; it belongs in " + " or ".join(dotted(home) or "the top level" for home in homes)
    return f"unknown key, expected one of {', '.join(fields)}{advice}"


@cache
def _all_homes() -> Mapping[str, list[Loc]]:
    return _homes(ArtifactDocument, ())


def _homes(model: type[BaseModel], at: Loc) -> dict[str, list[Loc]]:
    """Key → the mappings that have it."""
    homes: dict[str, list[Loc]] = {}
    for name, field in model.model_fields.items():
        homes.setdefault(name, []).append(at)
        for inner in _models_in(field.annotation):
            for key, places in _homes(inner, (*at, name)).items():
                homes.setdefault(key, []).extend(places)
    return homes


def fields_at(loc: Loc) -> Mapping[str, FieldInfo]:
    """The keys that the mapping at ``loc`` may have; empty where it is no mapping of ours."""
    models: list[type[BaseModel]] = [ArtifactDocument]
    for part in loc:
        if isinstance(part, str):
            fields = {k: v for model in models for k, v in model.model_fields.items()}
            if part in fields:
                models = _models_in(fields[part].annotation)
    return {k: v for model in models for k, v in model.model_fields.items()}


def _choices(loc: Loc) -> list[str]:
    """The words allowed at ``loc``."""
    names = [part for part in loc if isinstance(part, str)]
    annotation = fields_at(loc[: loc.index(names[-1])])[names[-1]].annotation
    return [
        str(choice)
        for leaf in _leaves(annotation)
        for choice in (get_args(leaf) or leaf.__members__.values())
    ]


def _kind_of(loc: Loc) -> str:
    field = fields_at(loc[:-1])[str(loc[-1])]
    if _models_in(field.annotation):
        return "a list" if get_origin(field.annotation) is tuple else "a mapping"
    leaf = _leaves(field.annotation)[0]
    return " or ".join(map(str, get_args(leaf))) or _KINDS[leaf]


def _leaves(annotation: Any) -> list[Any]:
    """The types an annotation is made of, without containers and None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    if origin in (Union, types.UnionType, tuple, dict):
        return [
            leaf
            for argument in get_args(annotation)
            if argument is not Ellipsis and argument is not type(None)
            for leaf in _leaves(argument)
        ]
    return [annotation]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    return [
        leaf
        for leaf in _leaves(annotation)
        if isinstance(leaf, type) and issubclass(leaf, BaseModel)
    ]
