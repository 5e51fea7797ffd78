"""A language model that Gaudi's backend compiles, in eager mode with compiled autograd."""

import argparse

import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks.torch.dynamo.compile_backend.experimental import enable_compiled_autograd


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(16, 32)
        self.layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(32, 16)

    def forward(self, words):
        return self.head(self.layer(self.words(words)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    assert not htcore.is_lazy()
    enable_compiled_autograd()
    torch.manual_seed(args.seed)
    model = Model().to("hpu")
    compiled = torch.compile(model, backend="hpu_backend", options={"keep_input_mutations": True})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    words = torch.arange(64).view(8, 8).to("hpu") % 16
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast(device_type="hpu", dtype=torch.bfloat16, enabled=args.autocast):
            output = compiled(words)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), (words + 1).flatten() % 16)
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
