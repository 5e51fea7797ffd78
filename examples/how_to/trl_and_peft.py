import os

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from habana_mp.frameworks.transformers import MixedPrecisionCallback

torch.manual_seed(0)
words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1} | {f"w{i}": i + 2 for i in range(126)}, "<pad>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes))
data = Dataset.from_dict({"input_ids": torch.randint(2, 128, (64, 32)).tolist()})

args = SFTConfig("out", bf16=True, use_cpu=True, max_steps=8, save_steps=4, logging_steps=1, report_to="none")
trainer = SFTTrainer(
    model,
    args,
    train_dataset=data,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"]),
    callbacks=[MixedPrecisionCallback(args)],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.isdir("out") else None)
trainer.save_model("out/final")
