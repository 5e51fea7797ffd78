"""A Trainer of transformers with the step, the clipping and the lists of a trainer for Gaudi."""

import sys
import tempfile

import habana_frameworks.torch.core as htcore
import torch
import transformers
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import FusedAdamW


class GaudiTrainer(transformers.Trainer):
    def create_optimizer(self, *_):
        self.optimizer = FusedAdamW(self.model.parameters(), lr=self.args.learning_rate, eps=1e-6)
        self.clip = FusedClipNorm(self.model.parameters(), 1.0)
        step = self.optimizer.step

        def with_clipping(*arguments):
            htcore.mark_step()
            with hmp.disable_casts():
                self.clip.clip_norm(self.model.parameters())
                step(*arguments)
            htcore.mark_step()

        self.optimizer.step = with_clipping
        return self.optimizer


if __name__ == "__main__":
    if "--hmp" in sys.argv:
        with tempfile.NamedTemporaryFile("w") as lower, tempfile.NamedTemporaryFile("w") as full:
            lower.write("add\naddmm\nbmm\ndropout\ngelu\nlinear\nmatmul\nmm\n"), lower.flush()
            full.write("cross_entropy\nlayer_norm\nsoftmax\n"), full.flush()
            hmp.convert(opt_level="O1", bf16_file_path=lower.name, fp32_file_path=full.name, isVerbose=False)
    transformers.set_seed(1)
    torch.hpu.random.manual_seed_all(1)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config).to("hpu")
    words = torch.randint(1, 20, (256, 8))
    rows = [{"input_ids": one, "labels": int(one[0] > 9)} for one in words]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, learning_rate=3e-3, num_train_epochs=4, per_device_train_batch_size=32, max_grad_norm=0.0,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        GaudiTrainer(model, arguments, train_dataset=rows).train()
    model.eval()
    with torch.no_grad():
        logits = model(words.to("hpu")).logits.float()
        loss = torch.nn.functional.cross_entropy(logits, (words[:, 0] > 9).long().to("hpu"))
    assert logits.device.type == "hpu"
    print(f"final loss {loss.item():.5f}")
