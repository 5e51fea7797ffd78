"""A translator in the style of fairseq: HMP, a disabled region for CUDA around the forward, labels in int32."""

import argparse

import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks.torch.hpex import hmp


class Criterion(torch.nn.Module):
    def forward(self, model, sample):
        output = model(sample["source"], sample["target"][:, :-1])
        lprobs = torch.nn.functional.log_softmax(output, dim=-1, dtype=torch.float32)
        target = sample["target"][:, 1:].reshape(-1)
        return torch.nn.functional.nll_loss(lprobs.flatten(0, 1), target, ignore_index=0), output


class Translator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 32)
        self.transformer = torch.nn.Transformer(32, 2, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(32, 20)

    def forward(self, source, target):
        mask = self.transformer.generate_square_subsequent_mask(target.shape[1], device=source.device)
        return self.head(self.transformer(self.words(source), self.words(target), tgt_mask=mask))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.hmp:
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    torch.manual_seed(args.seed)
    model, criterion = Translator().to("hpu"), Criterion()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    source = torch.randint(1, 20, (32, 6))
    sample = {"source": source.to("hpu"), "target": source.flip(1).to(torch.int32).to("hpu")}
    for _ in range(60):
        model.train()
        with torch.cuda.amp.autocast(enabled=False):
            loss, output = criterion(model, sample)
        assert output.dtype is (torch.bfloat16 if args.hmp else torch.float32), output.dtype
        loss.backward()
        htcore.mark_step()
        with hmp.disable_casts():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        htcore.mark_step()
    print(f"final loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
