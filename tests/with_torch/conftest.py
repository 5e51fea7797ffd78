"""What several of these files share."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator

import pytest
import torch

from habana_mp import HmpWarning


@pytest.fixture
def alike(one_thread: None) -> Iterator[None]:
    """The same numbers in each run; none of torch's warnings of old functions."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HmpWarning)
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what runs in its background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
