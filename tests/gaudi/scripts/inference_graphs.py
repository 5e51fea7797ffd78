"""A reader of sums is trained, then generates with a static cache in HPU graphs, as inference scripts do."""

import argparse
import time

import habana_frameworks.torch as ht
import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import torch
from habana_frameworks.torch.hpu.metrics import metric_localcontext

WORDS, LENGTH = 16, 12


class Attention(torch.nn.Module):
    """Attends to all positions of a cache that has one size from the beginning."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)

    def forward(self, x, mask, cache=None, position=None):
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if cache is not None:
            keys, values = cache
            keys.index_copy_(2, position, k.to(keys.dtype)), values.index_copy_(2, position, v.to(values.dtype))
            k, v = keys, values
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)
        weights = torch.softmax(scores + mask.to(scores.dtype), dim=-1, dtype=torch.float32).to(v.dtype)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(WORDS, 32), torch.nn.Embedding(LENGTH, 32)
        self.first, self.attention = torch.nn.LayerNorm(32), Attention(32, 2)
        self.second, self.head = torch.nn.LayerNorm(32), torch.nn.Linear(32, WORDS)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))

    def forward(self, words, position, mask, cache=None):
        x = self.words(words) + self.places(position)
        x = x + self.attention(self.first(x), mask, cache, position)
        return self.head(x + self.mlp(self.second(x)))


def train(model, words, steps: int, autocast: bool) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    position = torch.arange(LENGTH - 1, device="hpu")
    mask = torch.full((LENGTH - 1, LENGTH - 1), -1e4, device="hpu").triu(1)
    for _ in range(steps):
        with torch.autocast("hpu", dtype=torch.bfloat16, enabled=autocast):
            scores = model(words[:, :-1], position, mask)
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        htcore.mark_step()
        optimizer.step()
        htcore.mark_step()
    return loss.item()


@torch.no_grad()
def generate(model, begun, autocast: bool):
    """Captures one step of the decoder, and replays it for each position."""
    shape = (len(begun), 2, LENGTH, 16)
    cache = torch.zeros(shape, device="hpu"), torch.zeros(shape, device="hpu")
    word, position = begun[:, :1].clone(), torch.zeros(1, dtype=torch.long, device="hpu")
    mask = torch.full((1, LENGTH), -1e4, device="hpu")
    graph, stream = ht.hpu.HPUGraph(), hthpu.Stream()
    with hthpu.stream(stream), torch.autocast("hpu", dtype=torch.bfloat16, enabled=autocast):
        graph.capture_begin()
        chosen = model(word, position, mask, cache).float().argmax(-1)
        graph.capture_end()
    found = [begun[:, :1]]
    for step in range(LENGTH - 1):
        position.fill_(step)
        mask[:, step] = 0
        word.copy_(begun[:, step : step + 1] if step < begun.shape[1] else found[-1])
        graph.replay()
        found.append(begun[:, step + 1 : step + 2] if step + 1 < begun.shape[1] else chosen.clone())
    ht.hpu.synchronize()
    return torch.cat(found, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    # Each word is the sum of the two before it.
    words = torch.randint(0, WORDS, (64, 2))
    for _ in range(LENGTH - 2):
        words = torch.cat((words, (words[:, -1:] + words[:, -2:-1]) % WORDS), 1)
    words = words[torch.randperm(64)[:16]].to("hpu")
    model = Model().to("hpu")
    loss = train(model, words, 150, args.bf16)
    model = model.eval()
    htcore.hpu_set_inference_env()
    htcore.hpu_initialize(model)
    position = torch.arange(LENGTH - 1, device="hpu")
    mask = torch.full((LENGTH - 1, LENGTH - 1), -1e4, device="hpu").triu(1)
    wrapped = hthpu.wrap_in_hpu_graph(model, disable_tensor_cache=True, asynchronous=False)
    begin = time.perf_counter()
    with torch.inference_mode(), torch.autocast("hpu", torch.bfloat16, args.bf16), metric_localcontext("recipe_cache"):
        at_once = wrapped(words[:, :-1], position, mask).argmax(-1)
    generated = generate(model, words[:, :2], args.bf16)
    htcore.hpu_teardown_inference_env()
    print(f"{time.perf_counter() - begin:.1f} seconds")
    accuracy = (at_once[:, 1:] == words[:, 2:]).float().mean().item()
    assert generated.device.type == "hpu"
    agreement = (generated == words).float().mean().item()
    print(f"accuracy {accuracy:.3f} agreement {agreement:.3f}")
    assert accuracy > 0.95, accuracy
    assert agreement > 0.9, agreement
    print(f"final loss {loss:.5f}")


if __name__ == "__main__":
    main()
