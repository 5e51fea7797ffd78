"""A language model with experts, to each of which a different number of words goes, in the style of Mixtral's."""

import argparse
import contextlib

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import torch
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.kernels import FusedSDPA
from habana_frameworks.torch.hpex.normalization import FusedRMSNorm
from torch import nn


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-5

    def forward(self, x):
        return FusedRMSNorm.apply(x, self.weight.to(x.dtype), self.variance_epsilon)


class Expert(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(size, 2 * size, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * size, size, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    def __init__(self, size: int, count: int, top: int) -> None:
        super().__init__()
        self.count, self.top = count, top
        self.gate = nn.Linear(size, count, bias=False)
        self.experts = nn.ModuleList(Expert(size) for _ in range(count))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = self.gate(x)
        weights, chosen = torch.topk(nn.functional.softmax(logits, dim=1, dtype=torch.float), self.top, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        result = torch.zeros_like(x)
        one_hot = nn.functional.one_hot(chosen, self.count).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, row = torch.where(one_hot[number])
            htcore.mark_step()
            if row.shape[0] == 0:
                continue
            given = expert(x[row]) * weights[row, place, None]
            result.index_add_(0, row, given.to(result.dtype))
            htcore.mark_step()
        return result.reshape(shape), logits


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second, self.last = nn.Embedding(24, 32), Norm(32), Norm(32), Norm(32)
        self.qkv, self.out = nn.Linear(32, 32 + 2 * 16), nn.Linear(32, 32)  # two heads of keys for four of queries
        self.experts, self.head = Experts(32, 4, 2), nn.Linear(32, 24, bias=False)

    def forward(self, words):
        x = self.words(words)
        q, k, v = (
            one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in self.qkv(self.first(x)).split((32, 16, 16), -1)
        )
        with hthpu.sdp_kernel(enable_recompute=False):
            mixed = FusedSDPA.apply(q, k, v, None, 0.0, True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        added, logits = self.experts(self.second(x))
        return self.head(self.last(x + added)), logits


def balance(logits, count: int, top: int):
    """Returns the loss that makes all experts work."""
    weights = nn.functional.softmax(logits.float(), dim=-1)
    chosen = nn.functional.one_hot(weights.topk(top, -1).indices, count).float()
    return (chosen.mean(0) * weights.mean(0)[None]).sum() * count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.hmp:
        hmp.convert(opt_level="O2", bf16_file_path="", fp32_file_path="", isVerbose=False)
    torch.manual_seed(args.seed)
    hthpu.disable_dynamic_shape()
    model = Model().to("hpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    words = (torch.arange(13)[None] * torch.tensor([[1], [5], [7], [11], [13], [17], [19], [23]])).to("hpu") % 24
    for _ in range(80):
        region = torch.autocast("hpu", torch.bfloat16) if args.autocast else contextlib.nullcontext()
        with region:
            output, logits = model(words[:, :-1])
            loss = nn.functional.cross_entropy(output.float().flatten(0, 1), words[:, 1:].flatten())
            with hmp.disable_casts():
                assert output.dtype is (torch.bfloat16 if args.autocast or args.hmp else torch.float32)
                whole = loss + 0.02 * balance(logits, 4, 2)
        optimizer.zero_grad(set_to_none=True)
        whole.backward()
        htcore.mark_step()
        with hmp.disable_casts():
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        htcore.mark_step()
    print(f"final loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
