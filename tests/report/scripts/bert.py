"""Fine-tuning BERT to tell two classes of sentences apart; model and sentences are random."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Sentences(Dataset):
    def __init__(self, count):
        self.ids = torch.randint(5, 100, (count, 12))
        self.mask = torch.ones(count, 12, dtype=torch.long)
        self.mask[::2, 9:] = 0
        self.labels = torch.randint(0, 2, (count,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "labels": self.labels[i]}


def main():
    torch.manual_seed(42)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=16, **sizes))
    loader = DataLoader(Sentences(16), batch_size=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, len(loader))
    model.train()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item()!r}")
    model.eval()
    with torch.no_grad():
        print("logits", model(**batch).logits.float().sum().item())


if __name__ == "__main__":
    main()
