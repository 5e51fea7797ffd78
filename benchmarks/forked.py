"""Times a token in a process and in a child that is forked from it.

    python benchmarks/forked.py [--threads N] [--rounds N] [--small]

A decoder of 110 M parameters decodes tokens. Parent and child take turns, so that other load on the machine slows both.
The result is the median over all rounds of the median time of a token in a round. The parent has used torch with its
threads before it forks. The exit status is 1 if a token takes over 5 % longer in the child.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable

import torch

from habana_mp import hmp

ALLOWED = 1.05


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, past: list[torch.Tensor]) -> torch.Tensor:
        query, key, value = self.attention(self.norm(x)).chunk(3, -1)
        past[0], past[1] = torch.cat([past[0], key], 1), torch.cat([past[1], value], 1)
        heads = [one.unflatten(-1, (-1, 64)).transpose(1, 2) for one in (query, *past)]
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm_2(x))))


class Decoder(torch.nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.width = width
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)

    @torch.no_grad()
    def decode(self, tokens: int) -> float:
        """Returns the median time of a token, in milliseconds."""
        dtype = self.head(torch.zeros(1, self.width)).dtype
        pasts = [[torch.zeros(1, 0, self.width, dtype=dtype) for _ in range(2)] for _ in self.blocks]
        word, times = torch.zeros(1, 1, dtype=torch.long), []
        for _ in range(tokens):
            begin = time.perf_counter()
            x = self.words(word)
            for block, past in zip(self.blocks, pasts, strict=True):
                x = block(x, past)
            word = self.head(x).argmax(-1)
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e3


def serve(decode: Callable[[], float], asked: int, answers: int) -> None:
    """Runs in the child: decodes a round for each byte that it reads."""
    while os.read(asked, 1):
        os.write(answers, struct.pack("d", decode()))
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a decoder of 3 M parameters")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = Decoder(256, 3, 2000) if given.small else Decoder(768, 12, 32000)
    hmp.convert()
    model.decode(30)
    child_reads, parent_writes = os.pipe()
    parent_reads, child_writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(parent_writes)
        serve(lambda: model.decode(30), child_reads, child_writes)
    times: dict[str, list[float]] = {"parent": [], "child": []}
    for i in range(given.rounds + 1):
        parent = model.decode(30)
        os.write(parent_writes, b"x")
        answer = os.read(parent_reads, 8)
        if i:  # each process starts its threads in the first round
            times["parent"].append(parent)
            times["child"].append(struct.unpack("d", answer)[0])
    os.close(parent_writes)
    os.waitpid(child, 0)
    parent, forked = (statistics.median(times[one]) for one in ("parent", "child"))
    size = sum(one.numel() for one in model.parameters()) / 1e6
    print(f"{size:.0f} M parameters, {given.threads} threads, {given.rounds} rounds: ", end="")
    print(f"parent {parent:.2f} ms a token, child {forked:.2f} ms ({forked / parent:.3f} of the parent's)")
    sys.exit(0 if forked <= ALLOWED * parent else 1)


if __name__ == "__main__":
    main()
