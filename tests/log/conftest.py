"""What the tests of the log share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from habana_mp.reporting.log import close_log
from helpers.log_lines import Collector


@pytest.fixture(autouse=True)
def log_is_off_afterwards() -> Iterator[None]:
    yield
    close_log()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The exceptions that the log reported, instead of raising them."""
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: seen.append(report.exc_value))
    return seen


@pytest.fixture
def collected() -> Iterator[SimpleNamespace]:
    logger = logging.getLogger("tests.casts")
    handler = Collector()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield SimpleNamespace(logger=logger, handler=handler)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
