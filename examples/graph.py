"""A picture of the autograd graph that shows where tensors are cast.

``python examples/graph.py --output build/graph`` writes ``build/graph.dot``, and ``build/graph.svg`` when graphviz's
``dot`` is installed. Cast nodes are called ``ToCopyBackward0``. It needs torchviz: ``pip install ".[examples]"``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torchviz import make_dot

from habana_mp import hmp

CAST_NODE = "ToCopyBackward0"
ORDINARY, EMPHASIS = "[label=" + CAST_NODE, "[fillcolor=orange label=" + CAST_NODE


@dataclass(frozen=True)
class Result:
    """Where the picture is, and how many casts are in the graph with and without ``convert``."""

    files: tuple[Path, ...]
    cast_nodes: int
    cast_nodes_fp32: int


def graph_of(model: nn.Module) -> str:
    """The graph of one training step, in graphviz's language."""
    x, y = torch.ones(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    loss = F.cross_entropy(model(x), y)
    return make_dot(loss, params=dict(model.named_parameters())).source


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("graph"), help="where to write, without the suffix")
    options = parser.parse_args(arguments)

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10), nn.Softmax(dim=1)
    )
    fp32 = graph_of(model)
    hmp.convert(weight_cache=False)  # a cached cast of a weight would be no node of the graph
    try:
        source = graph_of(model)
    finally:
        hmp.restore()

    options.output.parent.mkdir(parents=True, exist_ok=True)
    picture = options.output.with_name(options.output.name + ".dot")
    picture.write_text(source.replace(ORDINARY, EMPHASIS))
    files = [picture]
    if shutil.which("dot"):
        files.append(picture.with_suffix(".svg"))
        subprocess.run(["dot", "-Tsvg", picture, "-o", files[1]], check=True)

    result = Result(tuple(files), source.count(CAST_NODE), fp32.count(CAST_NODE))
    print(f"cast nodes ({CAST_NODE}): {result.cast_nodes} in mixed precision, {result.cast_nodes_fp32} in FP32")
    print("written: " + ", ".join(map(str, files)))
    return result


if __name__ == "__main__":
    main()
