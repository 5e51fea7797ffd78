"""Fitting a polynomial; what to fit comes from the command line."""

import argparse
from itertools import count

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="polynomial regression")
parser.add_argument("degree", type=int)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("-v", "--verbose", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
weights = torch.randn(args.degree, 1) * 5
bias = torch.randn(1) * 5


def features(x):
    x = x.unsqueeze(1)
    return torch.cat([x**i for i in range(1, args.degree + 1)], 1)


def batch(size=32):
    x = features(torch.randn(size))
    return x, x.mm(weights) + bias.item()


fc = torch.nn.Linear(args.degree, 1)
for step in count(1):
    batch_x, batch_y = batch()
    fc.zero_grad()
    loss = F.smooth_l1_loss(fc(batch_x), batch_y)
    loss.backward()
    for parameter in fc.parameters():
        parameter.data.add_(-args.lr * parameter.grad)
    if args.verbose:
        print(f"step {step} loss {loss.item()!r}")
    if loss.item() < 1e-3 or step == args.steps:
        break
print(f"loss {loss.item()!r} after {step} batches", fc.weight.view(-1).tolist())
