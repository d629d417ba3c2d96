"""Column types that read the same from SQLite and PostgreSQL."""

import json
import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """A moment. Python sees timezone-aware UTC; a naive time is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"found the naive time {value}, expected one with a timezone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        # SQLite keeps no offset: what lies there was written as UTC.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_FLOAT = "$float"


def dumps(value: object) -> str:
    """JSON that every database accepts: numbers that JSON does not know are tagged."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_tag(value), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """What :func:`dumps` wrote, NaN and infinities included."""
    return json.loads(text, object_hook=_untag)


def _tag(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if isinstance(value, dict):
        return {key: _tag(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tag(item) for item in value]
    return value


def _untag(value: dict[str, Any]) -> Any:
    return float(value[_FLOAT]) if value.keys() == {_FLOAT} else value
