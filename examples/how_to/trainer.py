import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from habana_mp.frameworks.transformers import MixedPrecisionCallback

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes))
rows = torch.randint(0, 128, (64, 32))
args = TrainingArguments(
    "out", bf16=True, use_cpu=True, max_steps=8, save_steps=4, logging_steps=1, report_to="tensorboard"
)
trainer = Trainer(
    model,
    args,
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    callbacks=[MixedPrecisionCallback(args)],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.isdir("out") else None)
trainer.save_model("out/final")
