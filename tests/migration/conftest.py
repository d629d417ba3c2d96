"""Fixtures of these tests."""

from tests.support.databases import store_url

__all__ = ["store_url"]
