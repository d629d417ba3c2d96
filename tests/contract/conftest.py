"""Fixtures of these tests."""

from tests.support.databases import store_url
from tests.support.stored import fence, started, store

__all__ = ["fence", "started", "store", "store_url"]
