import os

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint

from habana_mp.frameworks.transformers import MixedPrecisionCallback

torch.manual_seed(0)
words = [f"w{i}" for i in range(100)]
vocabulary = Tokenizer(models.WordLevel({"<pad>": 0} | {word: i + 1 for i, word in enumerate(words)}, "<pad>"))
vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>").save_pretrained("tiny")
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
BertModel(BertConfig(vocab_size=101, **sizes)).save_pretrained("tiny")
texts = [" ".join(words[(i * 7 + j * 3) % 100] for j in range(6)) for i in range(64)]
data = Dataset.from_dict({"anchor": texts, "positive": texts[1:] + texts[:1]})

model = SentenceTransformer(modules=[Transformer("tiny"), Pooling(64)], device="cpu")
args = SentenceTransformerTrainingArguments(
    "out", bf16=True, use_cpu=True, max_steps=8, save_steps=4, logging_steps=1, report_to="none"
)
trainer = SentenceTransformerTrainer(
    model,
    args,
    train_dataset=data,
    loss=MultipleNegativesRankingLoss(model),
    callbacks=[MixedPrecisionCallback(args, rules={"mm": "fp32"})],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.isdir("out") else None)
model.save("out/final")
