"""Shared by all tests: a skipped test fails a run that must skip nothing."""

import os

import pytest

from tests.support.postgresql import postgresql_server

__all__ = ["postgresql_server"]

MUST_RUN_ALL = os.environ.get("CI") == "true"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if MUST_RUN_ALL and reporter is not None and skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"{len(skipped)} tests were skipped; with CI=true every test must run")
