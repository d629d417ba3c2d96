"""YAML text → plain data, with the position of every key and value.

A careful subset: one document in UTF-8, no anchors, aliases, merge keys or tags, no key
twice, and no number that two YAML versions read differently. The parser's events are taken
one by one, so that a bomb is refused before it is expanded, and nesting costs no recursion.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from canaryctl.controller.artifact.mistakes import Loc, Position, quoted
from canaryctl.controller.artifact.yaml_scalars import resolve

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 10_000

_OTHER_ENCODINGS = (  # the longer mark first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class YamlMistake:
    position: Position | None
    loc: Loc
    message: str


@dataclass(slots=True)
class YamlSource:
    """``data``: dict, list, str, int, float, bool and None. ``plain``: what was written
    without quotes, as written. ``refused``: places whose value was replaced, because it was
    a mistake already. ``complete``: False where reading ended early.
    """

    text: str
    data: Any = None
    values: dict[Loc, Position] = field(default_factory=dict)
    keys: dict[Loc, Position] = field(default_factory=dict)
    plain: dict[Loc, str] = field(default_factory=dict)
    refused: set[Loc] = field(default_factory=set)
    mistakes: list[YamlMistake] = field(default_factory=list)
    complete: bool = False


def read_yaml(content: bytes) -> YamlSource:
    """All mistakes of form are in the result; nothing is raised."""
    try:
        source = YamlSource(_decode(content))
    except _Stop as stop:
        return YamlSource("", mistakes=[YamlMistake(stop.position, (), stop.message)])
    try:
        _Reader(source).read()
        source.complete = True
    except _Stop as stop:
        source.mistakes.append(YamlMistake(stop.position, stop.loc, stop.message))
    return source


class _Stop(Exception):  # noqa: N818  ends the reading, becomes a mistake
    def __init__(self, message: str, position: Position | None = None, loc: Loc = ()) -> None:
        super().__init__(message)
        self.message, self.position, self.loc = message, position, loc


def _decode(content: bytes) -> str:
    for mark, name in _OTHER_ENCODINGS:
        if content.startswith(mark):
            raise _Stop(f"found {name} (by its byte order mark), expected UTF-8; save it as UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise _Stop("the file is empty, expected a document that begins apiVersion: canaryctl/v1")
    if 0 in content[:4] and len(content) >= 4 and content[:4].count(0) >= 2:
        raise _Stop("found UTF-16 or UTF-32 without a mark, expected UTF-8; save it as UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        byte = content[error.start]
        raise _Stop(
            f"found byte 0x{byte:02x}, which is not UTF-8 (perhaps latin-1 or Windows-1252); "
            "save the file as UTF-8",
            _position_after(before),
        ) from None
    unprintable = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if unprintable:
        found = "a NUL byte" if unprintable[0] == "\0" else f"the character {unprintable[0]!a}"
        raise _Stop(f"found {found}, expected text", _position_after(text[: unprintable.start()]))
    return text


def _position_after(text: str) -> Position:
    return Position(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


@dataclass(slots=True)
class _Open:
    """A list or mapping being read. ``kept``: False below a key that was there before."""

    loc: Loc
    container: list[Any] | dict[str, Any]
    kept: bool
    key: str | None = None  # of a mapping, once read
    keep_value: bool = True


class _Reader:
    def __init__(self, source: YamlSource) -> None:
        self._source = source
        self._loader = yaml.SafeLoader(source.text)
        self._stack: list[_Open] = []
        self._count = 0

    def read(self) -> None:
        documents = 0
        for event in self._events():
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise _Stop(
                            "found a second document, expected one a file; split the file",
                            _position(event.start_mark),
                        )
                case yaml.AliasEvent():
                    self._alias(event)
                case yaml.ScalarEvent():
                    self._scalar(event)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._open(event)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._stack.pop()
        if documents == 0 or (self._source.data is None and () not in self._source.refused):
            raise _Stop(
                "the file holds no document, expected one that begins apiVersion: canaryctl/v1"
            )

    def _events(self) -> Iterator[Any]:
        try:
            while self._loader.check_event():
                yield self._loader.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise _Stop(_explain(error), _position(mark) if mark else None) from None
        except (yaml.YAMLError, ValueError, OverflowError, IndexError) as error:
            # An escape or directive with a number beyond what Python takes.
            here = Position(self._loader.line + 1, self._loader.column + 1)
            raise _Stop(f"not YAML: {error}", here) from None

    def _next_loc(self) -> tuple[Loc, bool]:
        """Where the coming value belongs, and whether it is kept."""
        if not self._stack:
            return (), True
        top = self._stack[-1]
        if isinstance(top.container, list):
            return (*top.loc, len(top.container)), top.kept
        return (*top.loc, str(top.key)), top.kept and top.keep_value

    def _expects_key(self) -> bool:
        return (
            bool(self._stack)
            and self._stack[-1].key is None
            and isinstance(self._stack[-1].container, dict)
        )

    def _place(self, value: Any, event: Any) -> tuple[Loc, bool]:
        loc, kept = self._next_loc()
        self._count += 1
        if self._count > MAX_VALUES:
            raise _Stop(
                f"found more than {MAX_VALUES} values, expected at most that many",
                _position(event.start_mark),
            )
        if kept:
            self._source.values[loc] = _position(event.start_mark)
        if not self._stack:
            self._source.data = value
        else:
            top = self._stack[-1]
            if isinstance(top.container, list):
                top.container.append(value)
            else:
                if kept and top.key is not None:
                    top.container[top.key] = value
                top.key = None
        return loc, kept

    def _mistake(self, event: Any, loc: Loc, message: str) -> None:
        self._source.mistakes.append(YamlMistake(_position(event.start_mark), loc, message))

    def _refuse(self, event: Any, loc: Loc, message: str) -> None:
        self._source.refused.add(loc)
        self._mistake(event, loc, message)

    def _alias(self, event: Any) -> None:
        message = f"found the alias *{event.anchor[:60]}, expected the value; write it out"
        if self._expects_key():
            raise _Stop(message, _position(event.start_mark), self._stack[-1].loc)
        loc, _ = self._place(None, event)
        self._refuse(event, loc, message)

    def _open(self, event: Any) -> None:
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if self._expects_key():
            raise _Stop(
                f"found a {'list' if is_list else 'mapping'} as a key, expected a name",
                _position(event.start_mark),
                self._stack[-1].loc,
            )
        container: list[Any] | dict[str, Any] = [] if is_list else {}
        loc, kept = self._place(container, event)
        self._decorations(event, loc)
        self._stack.append(_Open(loc, container, kept))
        if len(self._stack) > MAX_DEPTH:
            raise _Stop(
                f"found more than {MAX_DEPTH} levels of nesting, expected at most that many",
                _position(event.start_mark),
            )

    def _decorations(self, event: Any, loc: Loc) -> None:
        if event.anchor is not None:
            self._mistake(
                event, loc, f"found the anchor &{event.anchor[:60]}, expected none; remove it"
            )
        if event.tag is not None:
            tag = quoted(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self._mistake(event, loc, f"found the tag {tag}, expected none; quote the value")

    def _scalar(self, event: Any) -> None:
        if self._expects_key():
            self._key(event)
            return
        value, complaint = resolve(event.value, plain=event.style is None)
        loc, kept = self._place(value, event)
        self._decorations(event, loc)
        if kept and event.style is None:
            self._source.plain[loc] = event.value
        if complaint:
            self._refuse(event, loc, complaint)

    def _key(self, event: Any) -> None:
        top = self._stack[-1]
        key, loc = event.value, (*top.loc, event.value)
        value, complaint = resolve(event.value, plain=event.style is None)
        self._decorations(event, loc)
        top.key, top.keep_value = key, True
        if event.style is None and key == "<<":
            self._mistake(event, loc, "found a merge key, expected a name; write the keys out")
            top.keep_value = False
        elif complaint or not isinstance(value, str):
            self._refuse(
                event, loc, complaint or f'found a key that is not text; quote it: "{key}"'
            )
        elif loc in self._source.keys and top.kept:
            first = self._source.keys[loc].line
            self._mistake(event, loc, f"found the key twice, first in line {first}; keep one")
            top.keep_value = False
        if top.kept and top.keep_value:
            self._source.keys[loc] = _position(event.start_mark)


def _explain(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be parsed"
    if "'\\t'" in problem:
        return "found a tab, expected spaces: YAML indents and separates with spaces"
    context = f"{error.context}, " if error.context else ""
    if error.context_mark is not None and error.context:
        context = f"{error.context} (line {error.context_mark.line + 1}), "
    return f"not YAML: {context}{problem}"
