"""A pretraining that is initialised as under DeepSpeed, with bfloat16 weights and a master copy in float32."""

import argparse
import os

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import habana_frameworks.torch.utils.debug as htdebug
import torch
from habana_frameworks.torch.hpex.kernels import CustomSoftmax
from habana_frameworks.torch.hpu.metrics import metric_global
from habana_frameworks.torch.utils.experimental import detect_recompilation_auto_model


class Engine:
    """The little of DeepSpeed's engine that the script needs."""

    def __init__(self, model, lr: float) -> None:
        self.module = model.bfloat16()
        self.masters = [one.detach().float() for one in model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=lr)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss) -> None:
        loss.backward()
        htcore.mark_step()

    def step(self) -> None:
        for master, one in zip(self.masters, self.module.parameters(), strict=True):
            master.grad, one.grad = one.grad.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for master, one in zip(self.masters, self.module.parameters(), strict=True):
                one.copy_(master)
        htcore.mark_step()


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.head = torch.nn.Embedding(16, 32), torch.nn.Linear(32, 96), torch.nn.Linear(32, 16)

    def forward(self, words):
        q, k, v = self.qkv(self.words(words)).chunk(3, -1)
        weights = q @ k.mT / 32**0.5 + torch.full((8, 8), -1e4, dtype=q.dtype, device=words.device).triu(1)
        return self.head(CustomSoftmax.apply(weights, 0) @ v)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", "0")
    if args.deterministic:
        hthpu.setDeterministic(True)
    htdebug._enable_weight_permute_pass(False)
    hthpu.disable_dynamic_shape()
    htcore.hpu_initialize()
    torch.manual_seed(args.seed)
    hthpu.random.default_generators[0].manual_seed(args.seed)
    model = detect_recompilation_auto_model(Attention().to("hpu"))
    engine = Engine(model, 1e-2)
    words = torch.arange(64).view(8, 8).to("hpu") % 16
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(engine(words).float().flatten(0, 1), ((words + 1) % 16).flatten())
        engine.backward(loss)
        engine.step()
    model.analyse_dynamicity()
    stats = hthpu.memory_stats()
    assert stats["MaxInUse"] >= stats["InUse"] > 0
    assert dict(metric_global("graph_compilation").stats())["TotalNumber"] == 0
    print(f"final loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
