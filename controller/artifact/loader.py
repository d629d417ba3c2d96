"""artifact.yaml → a checked document, or every mistake in it at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from canaryctl.controller.artifact.checks import CHECKS, Check
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.files import FileProblem, read_regular_file
from canaryctl.controller.artifact.messages import describe, mistakes_of
from canaryctl.controller.artifact.mistakes import Loc, Located, Mistake, Position
from canaryctl.controller.artifact.salvage import Salvage, validate
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.artifact.yaml_source import YamlSource, read_yaml
from canaryctl.controller.errors import ArtifactError

MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoadedArtifact:
    """``source``: the text of the file. ``directory``: absolute; what the document names by a
    relative path (a load profile) lies there."""

    document: ArtifactDocument
    digest: str
    source: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Inspection:
    """``artifact`` is None exactly where there are mistakes."""

    artifact: LoadedArtifact | None
    mistakes: tuple[Located, ...]


def load_artifact(path: Path, checks: Sequence[Check] = ()) -> LoadedArtifact:
    """Read and check one artifact file. ``checks`` are made besides the document's own ones.

    ArtifactError lists every mistake, one a line:
    ``file:line:column: where.in.document: found …, expected …``.
    """
    inspection = inspect_artifact(path, checks)
    if inspection.artifact is None:
        raise ArtifactError("\n".join(map(str, inspection.mistakes)))
    return inspection.artifact


def inspect_artifact(path: Path, checks: Sequence[Check] = ()) -> Inspection:
    """As :func:`load_artifact`, with the mistakes as values, in the order of the file."""
    try:
        source = read_yaml(read_regular_file(path, MAX_BYTES))
    except FileProblem as problem:
        return Inspection(None, (Located(str(path), None, (), str(problem)),))
    found = [Located(str(path), m.position, m.loc, m.message) for m in source.mistakes]
    document: ArtifactDocument | None = None
    if source.complete:
        document, mistakes = _check(source, checks)
        found += [Located(str(path), _position(source, m), m.loc, m.message) for m in mistakes]
    if found or document is None:
        return Inspection(None, tuple(sorted(found, key=_order)))
    return Inspection(
        LoadedArtifact(
            document=document,
            digest=digest_of(document.runtime),
            source=source.text,
            directory=path.absolute().parent,
        ),
        (),
    )


def _check(
    source: YamlSource, checks: Sequence[Check]
) -> tuple[ArtifactDocument | None, list[Mistake]]:
    if not isinstance(source.data, dict):
        found = describe(source.data, source.plain.get(()))
        return None, [
            Mistake((), f"found {found}, expected a mapping that begins apiVersion: canaryctl/v1")
        ]
    mistakes: list[Mistake] = []
    document: ArtifactDocument | None = None
    try:
        document = validate(source.data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        mistakes = mistakes_of(errors, source.data, source.values, source.plain)
        mistakes = [m for m in mistakes if m.at_key or not _refused_before(source, m.loc)]
    for round_of_checks in (CHECKS, checks):  # the caller's see what the document's own left
        salvage = Salvage(source.data, {*source.refused, *(m.loc for m in mistakes)})
        mistakes += [
            sound
            for check in round_of_checks
            for mistake in check(salvage.document)
            if (sound := salvage.sound(mistake)) is not None
        ]
    return document, mistakes


def _refused_before(source: YamlSource, loc: Loc) -> bool:
    return any(loc[:depth] in source.refused for depth in range(len(loc) + 1))


def _position(source: YamlSource, mistake: Mistake) -> Position:
    """Of the value or key itself, or of the nearest thing around what is not there."""
    loc = mistake.loc
    if mistake.at_key and loc in source.keys:
        return source.keys[loc]
    if loc in source.values:
        return source.values[loc]
    while loc:
        loc = loc[:-1]
        place: Any = source.keys.get(loc) or source.values.get(loc)
        if place is not None:
            return place  # type: ignore[no-any-return]
    return Position(1, 1)


def _order(located: Located) -> tuple[int, int]:
    place = located.position
    return (place.line, place.column) if place else (0, 0)
