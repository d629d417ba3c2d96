"""Change the grid in the text of an artifact and nothing else: comments, order and form stay.

The places are found by the parser's own positions; only the text of a value that changes is
replaced, and what is not there yet is put in front of its mapping's first key.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from canaryctl.controller.artifact.loader import LoadedArtifact, load_artifact
from canaryctl.controller.artifact.wholefile import replace_file
from canaryctl.controller.errors import ArtifactError

_COLUMNS: Final = 100

Value = str | Sequence[int]


def write_grid(
    path: Path,
    *,
    mode: str,
    sizes: Sequence[int],
    decode_buckets: Sequence[int],
    mixed_token_buckets: Sequence[int],
) -> LoadedArtifact:
    """Set ``graph`` and the buckets of ``warmup_plan``. ArtifactError where the file is no valid
    artifact, before or after; then it stays as it was."""
    plan = _plan(decode_buckets, mixed_token_buckets)
    return _write(path, {"graph": {"mode": mode, "capture_sizes": sizes}, "warmup_plan": plan})


def write_warmup(
    path: Path, *, decode_buckets: Sequence[int], mixed_token_buckets: Sequence[int]
) -> LoadedArtifact:
    """Set the buckets of ``warmup_plan`` alone; as :func:`write_grid`."""
    return _write(path, {"warmup_plan": _plan(decode_buckets, mixed_token_buckets)})


def _plan(decode: Sequence[int], mixed: Sequence[int]) -> Mapping[str, Value]:
    return {"decode_buckets": decode, "mixed_token_buckets": mixed}


def _write(path: Path, sections: Mapping[str, Mapping[str, Value]]) -> LoadedArtifact:
    before = load_artifact(path)
    text = rewritten(before.source, sections)
    draft = path.with_name(f".{path.name}.draft.yaml")
    try:
        draft.write_text(text, "utf-8")
        after = load_artifact(draft)
    finally:
        draft.unlink(missing_ok=True)
    expected = before.document.runtime.model_dump(mode="json")
    for section, values in sections.items():
        expected[section] |= {
            key: value if isinstance(value, str) else list(value) for key, value in values.items()
        }
    if after.document.runtime.model_dump(mode="json") != expected:
        raise ArtifactError(
            f"{path}: its form cannot be edited; change {' and '.join(sections)} by hand"
        )
    replace_file(path, text)
    return load_artifact(path)


def rewritten(text: str, sections: Mapping[str, Mapping[str, Value]]) -> str:
    """``text`` with the keys of ``runtime``'s sections set. Of a text without runtime:
    ArtifactError."""
    for section, values in sections.items():
        for key, value in values.items():
            text = _with_value(text, section, key, value)
    return text


def _with_value(text: str, section: str, key: str, value: Value) -> str:
    runtime = _child(yaml.compose(text, yaml.SafeLoader), "runtime")
    if not isinstance(runtime, yaml.MappingNode):
        raise ArtifactError("found no mapping runtime, expected one")
    inner = _child(runtime, section)
    if inner is None or not isinstance(inner, yaml.MappingNode) or not inner.value:
        written = f"{{{key}: {_written(value, None)}}}"
        if inner is not None:
            return text[: _begin(inner)] + written + text[_end(inner) :]
        return _inserted(text, runtime, f"{section}: {written}")
    at, found = next(((at, old) for at, old in inner.value if at.value == key), (None, None))
    if at is None or found is None:
        return _inserted(text, inner, f"{key}: {_written(value, None)}")
    if isinstance(found, yaml.SequenceNode) and not found.flow_style:
        # A block may be indented as its key is, where what takes its place would be a key itself.
        colon = text.index(":", at.end_mark.index) + 1
        comments = text[colon : _begin(found)].rstrip()
        beside = len(comments.partition("\n")[0])
        written = _written(value, (at.start_mark.column + 4, at.end_mark.column + 2 + beside))
        return f"{text[:colon]} {written}{comments}{text[_end(found) :]}"
    column = inner.value[0][0].start_mark.column if not inner.flow_style else None
    room = None if column is None else (column + 4, found.start_mark.column)
    return text[: _begin(found)] + _written(value, room) + text[_end(found) :]


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _inserted(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """``entry`` before the first key; every mapping here has one."""
    first = mapping.value[0][0].start_mark
    between = ", " if mapping.flow_style else "\n" + " " * first.column
    return text[: first.index] + entry + between + text[first.index :]


def _begin(node: yaml.Node) -> int:
    return int(node.start_mark.index)


def _end(node: yaml.Node) -> int:
    """After its last character: the parser ends a block where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _written(value: Value, room: tuple[int, int] | None) -> str:
    """``room``: columns to go on at in a further line, and where the first begins; None: all in
    one line."""
    if isinstance(value, str):
        return value
    inner = ", ".join(map(str, value))
    if room is None or room[1] + len(inner) + 2 <= _COLUMNS:
        return f"[{inner}]"
    indent = " " * room[0]
    lines = textwrap.wrap(inner, _COLUMNS - room[0] - 1, break_long_words=False)
    return "[\n" + "\n".join(indent + line for line in lines) + "]"
