"""Times a decoder's token with its head in float32 by a rule for the module: only the arithmetic should take time.

python benchmarks/steered.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from states import converted
from timing import Contender, run
from transformers import LlamaConfig, LlamaForCausalLM


def decoder() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32_000, **sizes)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 7 if parser.parse_args().quick else 31
    model, token = decoder(), torch.tensor([[7]])
    features = torch.randn(1, 1, 512)

    def lists():
        return converted(preset="recommended")

    def with_rule():
        return converted(preset="recommended", rules={"* @ lm_head": "fp32"})

    def step():
        return model(token, use_cache=False)

    def head():
        return model.lm_head(features)

    token_by_lists, token_by_rule = Contender("token", step, lists), Contender("token", step, with_rule)
    head_by_lists, head_in_float32 = Contender("head", head, lists), Contender("head", head)
    with torch.no_grad():
        run([token_by_lists, token_by_rule, head_by_lists, head_in_float32], rounds=rounds, target_seconds=0.3)
    more = token_by_rule.median - token_by_lists.median
    arithmetic = head_in_float32.median - head_by_lists.median
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; a decoder of 8 x 512, 32,000 words")
    for name, listed, float32 in (
        ("a token, its head by the lists and in float32", token_by_lists, token_by_rule),
        ("the head alone, by the lists and in float32", head_by_lists, head_in_float32),
    ):
        print(f"{name:<48}{listed.median * 1e3:>8.2f} ms{float32.median * 1e3:>8.2f} ms")
    print(f"the rule adds {more * 1e3:.2f} ms, of which {arithmetic * 1e3:.2f} are the head's arithmetic")


if __name__ == "__main__":
    main()
