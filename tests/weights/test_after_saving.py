"""After a model was saved, copied or read, the cast of each weight is used again, and made at most once anew."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp
from helpers.late import Late
from helpers.weights import cached

accelerate, tensorboard, transformers = Late("accelerate"), Late("torch.utils.tensorboard"), Late("transformers")


def _draw(model: nn.Module, folder: Path) -> None:
    with tensorboard.SummaryWriter(str(folder)) as writer:
        for name, one in model.named_parameters():
            writer.add_histogram(name, one)


#: Scripts do this with a model between two calls. The result is held.
DONE: dict[str, Callable[[Any, Path], Any]] = {
    "save_pretrained": lambda model, folder: model.save_pretrained(folder),
    "accelerate's save": lambda model, folder: accelerate.Accelerator(cpu=True).save_model(model, str(folder)),
    "safetensors": lambda model, folder: save_model(model, str(folder / "model.safetensors")),
    "torch.save": lambda model, folder: torch.save(model.state_dict(), folder / "model.pt"),
    "pickle": lambda model, folder: pickle.dumps(model),
    "a held state_dict": lambda model, folder: model.state_dict(),
    "held detached weights": lambda model, folder: [one.detach() for one in model.parameters()],
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "DDP": lambda model, folder: DistributedDataParallel(model),
    "numpy": lambda model, folder: [one.detach().numpy().mean() for one in model.parameters()],
    "a look by TensorBoard": _draw,
    "data_ptr": lambda model, folder: [one.data_ptr() for one in model.parameters()],
    "data": lambda model, folder: [one.data.norm() for one in model.parameters()],
    "an optimizer": lambda model, folder: torch.optim.AdamW(model.parameters()),
}


@pytest.mark.parametrize("before", [False, True], ids=["after the first calls", "before convert"])
@pytest.mark.usefixtures("counted", "alone_in_a_group")
def test_all_casts_are_used_again(before: bool, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=200
    )
    words = torch.tensor([[1, 2, 3]])
    for name, done in DONE.items():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        held = done(model, folder) if before else None
        hmp.convert(preset="recommended")
        with torch.no_grad():
            for _ in range(2):
                model(words)
            count = cached().weights
            assert count == 8, name  # seven in the layer, and the head
            if not before:
                held = done(model, folder)
            hmp.reset_report()
            model(words)
            assert cached().refreshes <= count, name
            hmp.reset_report()
            for _ in range(2):
                model(words)
            now = cached()
            assert (now.weights, now.hits, now.refreshes, now.refused) == (count, 2 * count, 0, 0), name
        hmp.restore()
        del held
