"""An LSTM that predicts the next word, with truncated backpropagation and clipped gradients."""

import math

import torch
from torch import nn

torch.manual_seed(1111)
WORDS, SIZE, BPTT = 50, 16, 7


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, SIZE)
        self.rnn = nn.LSTM(SIZE, SIZE, 2, dropout=0.2)
        self.decoder = nn.Linear(SIZE, WORDS)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, WORDS)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, SIZE), weight.new_zeros(2, batch, SIZE)


def repackage(hidden):
    return tuple(one.detach() for one in hidden)


corpus = torch.randint(0, WORDS, (22, 4))
model, criterion, lr = RNNModel(), nn.NLLLoss(), 20.0
for epoch in range(1, 3):
    model.train()
    hidden, total = model.init_hidden(4), 0.0
    for i in range(0, len(corpus) - 1, BPTT):
        length = min(BPTT, len(corpus) - 1 - i)
        data, targets = corpus[i : i + length], corpus[i + 1 : i + 1 + length].view(-1)
        model.zero_grad()
        output, hidden = model(data, repackage(hidden))
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-lr)
        total += loss.item()
        print(f"epoch {epoch} at {i} loss {loss.item()!r}")
    print(f"perplexity {math.exp(total / 3)!r}")
