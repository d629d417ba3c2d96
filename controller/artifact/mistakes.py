"""A mistake in an artifact file, and how the place it stands at is written."""

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches

Loc = tuple[str | int, ...]
"""A place in the document: ``("gates", 0, "name")``. The whole document is ``()``."""

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_LONGEST_NAME = 64  # nobody means one of our names by a longer one


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the text; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a check found. ``needs``: other places that it was concluded from; the mistake is
    not reported while one of them is itself mistaken. ``at_key``: the key is what is wrong,
    not its value.
    """

    loc: Loc
    message: str
    needs: tuple[Loc, ...] = ()
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """A mistake with its position; None where the file as a whole is meant."""

    file: str
    position: Position | None
    loc: Loc
    message: str

    @property
    def where(self) -> str:
        return dotted(self.loc)

    def __str__(self) -> str:
        place = printable(self.file)
        if self.position is not None:
            place += f":{self.position.line}:{self.position.column}"
        return f"{place}: {self.where}: {self.message}" if self.loc else f"{place}: {self.message}"


def dotted(loc: Loc) -> str:
    """``runtime.graph.capture_sizes[3]``; a key of other characters is quoted."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _BARE_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(text: str, longest: int = 60) -> str:
    """In double quotes, control characters escaped, shortened."""
    shortened = text if len(text) <= longest else text[: longest - 1] + "…"
    return printable(json.dumps(shortened, ensure_ascii=False))


def printable(text: str) -> str:
    """Without characters that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def did_you_mean(found: str, allowed: list[str]) -> str:
    """``; did you mean "…"?``, or nothing when no name is near."""
    if len(found) > _LONGEST_NAME:
        return ""
    by_fold = {name.casefold(): name for name in allowed}
    near = get_close_matches(found.casefold(), by_fold, n=1)
    return f"; did you mean {quoted(by_fold[near[0]])}?" if near else ""
