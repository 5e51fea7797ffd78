"""A decoder with Gaudi's fused kernels is trained, and generates words as a captured graph."""

import argparse
import contextlib

import habana_frameworks.torch as ht
import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.kernels import FusedSDPA
from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingHelperV2 as FusedRoPE
from habana_frameworks.torch.hpex.normalization import FusedRMSNorm


class Norm(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        if x.device.type == "hpu" and FusedRMSNorm:
            return FusedRMSNorm.apply(x.float(), self.weight.float(), 1e-6).to(x.dtype)
        raise AssertionError


class Layer(torch.nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, Norm(size), Norm(size)
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.up, self.down = torch.nn.Linear(size, 2 * size), torch.nn.Linear(2 * size, size)

    def forward(self, x, cos, sin, ids):
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(self.first(x)).chunk(3, -1))
        q, k = (
            FusedRoPE.apply(one, cos[None, None].to(one.dtype), sin[None, None].to(one.dtype), ids) for one in (q, k)
        )
        with ht.hpu.sdp_kernel(enable_recompute=True):
            mixed = FusedSDPA.apply(q, k, v, None, 0.0, True, None, "fast", True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(torch.nn.functional.silu(self.up(self.second(x))))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(16, 32)
        self.layers = torch.nn.ModuleList(Layer(32, 4) for _ in range(2))
        self.head = torch.nn.Linear(32, 16)
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(0, 8, 2) / 8)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, words):
        x, ids = self.words(words), torch.arange(words.shape[1], device=words.device)[None].expand_as(words)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, ids)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.hmp:
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    torch.manual_seed(args.seed)
    model = Decoder().to("hpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    words = (torch.arange(17)[None] * torch.tensor([[1], [3], [5], [7]])).to("hpu") % 16
    for _ in range(60):
        optimizer.zero_grad(set_to_none=True)
        region = torch.autocast("hpu", torch.bfloat16) if args.autocast else contextlib.nullcontext()
        with region:
            output = model(words[:, :-1])
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        htcore.mark_step()
        with hmp.disable_casts():
            optimizer.step()
        htcore.mark_step()
    print(f"final loss {loss.item():.5f}")
    model.eval()
    htcore.hpu_set_inference_env()
    htcore.hpu_inference_initialize(model, mark_scales=False)
    wrapped = ht.hpu.wrap_in_hpu_graph(model, disable_tensor_cache=True)
    with torch.no_grad(), torch.autocast("hpu", torch.bfloat16, enabled=args.autocast):
        found = wrapped(words[:, :-1]).argmax(-1)
    print(f"accuracy {(found == words[:, 1:]).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
