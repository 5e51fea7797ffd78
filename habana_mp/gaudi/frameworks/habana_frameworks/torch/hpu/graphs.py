"""Graphs that are captured and replayed. Functions that only make calls faster by graphs make plain calls here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from habana_mp.gaudi import devices
from habana_mp.gaudi.patches.seen_operations import Recording

from . import streams

__all__ = [
    "CachedParams",
    "HPUGraph",
    "ModuleCacher",
    "copy_to",
    "graph",
    "input_hash",
    "make_graphed_callables",
    "wrap_in_hpu_graph",
    "wrap_in_hpu_graph_func",
]

_T = TypeVar("_T")


class HPUGraph:
    """Operations that are captured once, and replayed with the current values of their inputs.

    On CUDA it is a CUDA graph. On other devices the operations are recorded, and each of them runs again.
    """

    def __init__(self) -> None:
        self._graph: Any = torch.cuda.CUDAGraph() if devices().real.type == "cuda" else Recording()

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Begins the capture. Calls from now on belong to the graph, and take effect when it is replayed."""
        self._graph.capture_begin()

    def capture_end(self) -> None:
        """Ends the capture: the graph is complete."""
        self._graph.capture_end()

    def replay(self, asynchronous: bool = False) -> None:
        """Runs the graph. Results are written to the tensors that the capture returned."""
        self._graph.replay()

    def reset(self) -> None:
        """Deletes the graph, and frees its memory."""
        self._graph.reset()


@contextmanager
def graph(hpu_graph: HPUGraph, stream: Any = None, **_: Any) -> Iterator[None]:
    """Returns a context whose operations are captured."""
    if stream is None and devices().real.type == "cuda":
        stream = streams.Stream()  # CUDA cannot capture on the default stream
    with streams.stream(stream):
        hpu_graph.capture_begin()
        try:
            yield
        finally:
            hpu_graph.capture_end()


def wrap_in_hpu_graph(module: _T, *_: Any, **__: Any) -> _T:
    """Returns the module or functions unchanged. On Gaudi its calls are captured for each shape and replayed."""
    return module


wrap_in_hpu_graph_func = make_graphed_callables = wrap_in_hpu_graph


@dataclass
class CachedParams:
    """A graph that a script has captured itself, with the tensors that it reads and writes."""

    graph_inputs: Any
    graph_outputs: Any
    graph: HPUGraph | None = None


def input_hash(value: Any) -> int:
    """Returns a number that is the same for arguments with the same values, where tensors count by their shape."""
    if isinstance(value, torch.Tensor):
        return hash(tuple(value.shape))
    if isinstance(value, dict):
        return hash(tuple((name, input_hash(one)) for name, one in value.items()))
    if isinstance(value, (list, tuple)):
        return hash(tuple(map(input_hash, value)))
    return hash(value)


def copy_to(dst: Any, src: Any) -> None:
    """Copies the tensors of ``src`` into those of ``dst``, which has the same structure.

    Raises:
        ValueError: the structures differ.
    """
    if isinstance(dst, torch.Tensor) and isinstance(src, torch.Tensor):
        dst.copy_(src, non_blocking=True)
    elif isinstance(dst, dict) and isinstance(src, dict) and dst.keys() == src.keys():
        for name, one in dst.items():
            copy_to(one, src[name])
    elif isinstance(dst, (list, tuple)) and isinstance(src, (list, tuple)) and len(dst) == len(src):
        for one, other in zip(dst, src, strict=True):
            copy_to(one, other)
    elif isinstance(dst, (torch.Tensor, dict, list, tuple)) or type(dst) is not type(src):
        raise ValueError(f"`src` must have the structure of `dst`; got {type(src).__name__}, {type(dst).__name__}")


class ModuleCacher:
    """``ModuleCacher()(model=model, inplace=True)`` returns the model unchanged. On Gaudi its calls are captured for
    each shape and replayed."""

    def __init__(self, max_graphs: int | None = 10, **_: Any) -> None:
        self.max_graphs = max_graphs

    def __call__(self, model: _T, *_: Any, **__: Any) -> _T:
        for name in ("capture_start", "capture_end", "set_iteration_count"):
            setattr(model, name, lambda *_: None)  # the methods that a cached module has on Gaudi
        return model
