"""The plugins of habana_mp.frameworks: the report that each leaves, what each switches off, and what each says.

That their trainings are those of `convert` by hand is in test_pages.py. Needs transformers, accelerate, lightning,
pytorch-lightning, pytorch-ignite and tensorboard.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from ignite.engine import create_supervised_trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from transformers import HfArgumentParser, TrainingArguments

from habana_mp import HmpWarning, hmp
from habana_mp.frameworks.accelerate import prepare
from habana_mp.frameworks.ignite import attach
from habana_mp.frameworks.lightning import MixedPrecision
from habana_mp.frameworks.transformers import MixedPrecisionArguments, MixedPrecisionCallback
from helpers.how_to import PAGES, original, run, script
from helpers.training import loader, network

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = [pytest.mark.usefixtures("quiet_libraries", "counted")]


def texts_of_tensorboard(folder: Path) -> list[str]:
    """Returns the reports that TensorBoard shows for the runs below a folder."""
    found = []
    for path in {one.parent for one in folder.rglob("events.out.tfevents.*")}:
        events = EventAccumulator(str(path)).Reload()
        if "habana_mp/text_summary" in events.Tags()["tensors"]:
            found += [one.tensor_proto.string_val[0].decode() for one in events.Tensors("habana_mp/text_summary")]
    return found


def test_importing_habana_mp_imports_no_framework() -> None:
    code = (
        "import sys, habana_mp.frameworks\nassert not {'transformers', 'accelerate', 'lightning', 'pytorch_lightning', "
        "'ignite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("framework", "old", "requirement", "page"),
    [
        ("transformers", "4.49.0", "transformers>=4.50", "trainer"),
        ("accelerate", "0.34.2", "accelerate>=1.0", "accelerate"),
        ("ignite", "0.4.13", "pytorch-ignite>=0.5", "ignite"),
    ],
)
def test_a_framework_that_is_too_old_is_refused_at_import(
    framework: str, old: str, requirement: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{framework}.__version__", old)
    monkeypatch.delitem(sys.modules, f"habana_mp.frameworks.{framework}")
    name, _, least = requirement.partition(">=")
    expected = f'works with {name} {least} or later; {old} is installed. Run pip install "{requirement}"'
    with pytest.raises(ImportError, match=re.escape(expected)):
        importlib.import_module(f"habana_mp.frameworks.{framework}")
    assert f"{least} or later" in (PAGES / f"{page}.md").read_text("utf-8")


def test_lightning_that_is_too_old_is_refused_when_the_plugin_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("pytorch_lightning")
    monkeypatch.setattr("pytorch_lightning.__version__", "2.0.9")
    with pytest.raises(ImportError, match=re.escape('Run pip install "pytorch_lightning>=2.1"')):
        MixedPrecision()
    assert "2.1 or later" in (PAGES / "lightning.md").read_text("utf-8")


# ---- transformers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["bf16", "fp16", "environment"])
def test_the_callback_switches_trainers_autocast_off_and_says_so(
    switch: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = script("trainer")
    if switch == "environment":
        text = "import os\nos.environ['ACCELERATE_MIXED_PRECISION'] = 'bf16'\n" + text.replace("bf16=True, ", "")
    logging.getLogger("transformers").propagate = True
    caplog.set_level(logging.WARNING, "transformers")  # other tests may have chosen another one
    run(text.replace("bf16=True", f"{switch}=True"), tmp_path)  # an HmpWarning about autocast would be an error
    own = "fp16" if switch == "fp16" else "bf16"
    assert f"Trainer's own autocast ({own}) is switched off" in caplog.text
    assert "All 136 products ran in bf16" in hmp.report(show=False).words[0]


def test_the_callback_says_nothing_if_trainer_has_no_autocast(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("transformers").propagate = True
    caplog.set_level(logging.WARNING, "transformers")
    MixedPrecisionCallback(TrainingArguments("out", use_cpu=True))
    assert not caplog.text


def test_trainer_leaves_the_report_in_tensorboards_folder(tmp_path: Path) -> None:
    run(script("trainer"), tmp_path)
    (text,) = texts_of_tensorboard(tmp_path)
    assert "All 136 products ran in bf16" in text
    assert "scaled_dot_product_attention" in text


def test_trainer_evaluates_without_a_training_in_mixed_precision_too(tmp_path: Path) -> None:
    text = script("trainer").replace("train_dataset=", "eval_dataset=")
    found = run(re.sub(r"^trainer\.train\(.*", "trainer.evaluate()", text, flags=re.MULTILINE), tmp_path)
    assert found["trainer"].accelerator.mixed_precision == "no"
    assert {row.precision for row in hmp.report(show=False) if row.operation == "linear"} == {"bf16"}


def test_a_callback_that_is_added_later_is_refused(tmp_path: Path) -> None:
    text = original("trainer").replace("trainer.train", "trainer.add_callback(callback(args))\ntrainer.train")
    text = text.replace(
        "import os", "import os\nfrom habana_mp.frameworks.transformers import MixedPrecisionCallback as callback"
    )
    with pytest.raises(RuntimeError, match="must be in `callbacks=` of the Trainer"):
        run(text, tmp_path)


def test_arguments_of_a_command_line_are_options_of_convert() -> None:
    parser: Any = HfArgumentParser((TrainingArguments, MixedPrecisionArguments))
    words = ["--output_dir=out", "--use_cpu", "--hmp_preset=torch-cpu", "--hmp_guard", "--hmp_report=lines"]
    rules = ["--hmp_rules", "* @ lm_head=fp32", "softmax=lower"]
    _, given = parser.parse_args_into_dataclasses([*words, *rules])
    assert given.options() == {
        "preset": "torch-cpu",
        "guard": True,
        "report": "lines",
        "rules": {"* @ lm_head": "fp32", "softmax": "lower"},
    }
    hmp.convert(**given.options())
    _, nothing = parser.parse_args_into_dataclasses(["--output_dir", "out", "--use_cpu"])
    assert nothing.options() == {}


# ---- Accelerate ----------------------------------------------------------------------------------------------------


def test_models_of_accelerate_return_float32_and_have_no_autocast(tmp_path: Path) -> None:
    found = run(script("accelerate_loop"), tmp_path)  # a new state of Accelerate
    assert found["accelerator"].native_amp
    hmp.convert(preset="recommended")
    hmp.reset_report()
    model = found["model"]
    assert model(torch.randn(2, 64)).dtype is FP32
    assert hmp.report(show=False).results == (1, 2 * 10 * 4)
    assert "_original_forward" not in vars(model)
    (text,) = texts_of_tensorboard(tmp_path)
    assert "All 16 products ran in bf16" in text


@pytest.mark.usefixtures("fresh_accelerate")
def test_with_fp16_accelerates_scaler_scales_losses_of_float16() -> None:
    """Accelerate has a scaler on a GPU only. Here it gets one for the CPU."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = network()
    model, optimizer, batches = prepare(accelerator, model, torch.optim.SGD(model.parameters(), 0.1), loader())
    for x, y in batches:
        result = model(x)
        assert result.dtype is FP32
        accelerator.backward(nn.functional.cross_entropy(result, y))
        scaled = sum(float(one.grad.norm()) ** 2 for one in model.parameters()) ** 0.5
        assert float(accelerator.clip_grad_norm_(model.parameters(), 1e6)) == pytest.approx(scaled / 1024, rel=1e-4)
        optimizer.step()
        optimizer.zero_grad()
    assert {row.precision for row in hmp.report(show=False) if row.operation == "linear"} == {"fp16"}


# ---- Lightning -----------------------------------------------------------------------------------------------------


def test_lightning_validates_with_lists_of_its_own_and_restores(tmp_path: Path) -> None:
    run(script("lightning_trainer"), tmp_path)
    (text,) = texts_of_tensorboard(tmp_path)
    assert "All 16 products ran in bf16" in text  # none of the validation's
    run(script("lightning_trainer").replace('validation={"enabled": False}', ""), tmp_path / "other")
    (text,) = texts_of_tensorboard(tmp_path / "other")
    assert "All 36 products ran in bf16" in text


def test_lightning_restores_after_an_error(tmp_path: Path) -> None:
    text = script("lightning_trainer").replace("self.losses.append(loss.item())", "raise RuntimeError('stop here')")
    from habana_mp.frameworks import lightning

    restored: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        restore = hmp.restore
        patch.setattr(lightning.hmp, "restore", lambda: (restore(), restored.append(True)))
        with pytest.raises(RuntimeError, match="stop here"):
            run(text, tmp_path)
    assert restored


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_the_plugin_is_one_of_the_package_that_the_program_uses(package: str) -> None:
    trainer, fabric = (
        ("lightning.pytorch", "lightning.fabric") if package == "lightning" else (package, "lightning_fabric")
    )
    code = (
        "from habana_mp.frameworks.lightning import MixedPrecision\n"
        f"from {trainer} import Trainer\nfrom {fabric} import Fabric\nimport torch\n"
        "Trainer(plugins=MixedPrecision(), logger=False, accelerator='cpu')\n"
        "fabric = Fabric(plugins=MixedPrecision(), accelerator='cpu')\n"
        "model = torch.nn.Linear(4, 4)\n"
        "model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))\n"
        "loss = model(torch.ones(2, 4)).sum()\nfabric.backward(loss)\noptimizer.step()\n"
        "assert loss.dtype is torch.float32\n"
        "from habana_mp import hmp\nassert [row.precision for row in hmp.report(show=False)][0] == 'bf16'\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_plugin_can_be_pickled() -> None:
    importlib.import_module("pytorch_lightning")
    plugin = pickle.loads(pickle.dumps(MixedPrecision(validation={"enabled": False}, preset="torch-cpu")))
    assert isinstance(plugin, MixedPrecision)
    assert vars(plugin) == vars(MixedPrecision(validation={"enabled": False}, preset="torch-cpu"))


# ---- Ignite --------------------------------------------------------------------------------------------------------


def test_ignite_leaves_the_report_in_its_log_and_in_tensorboard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.cross_entropy)
    attach(trainer, tmp_path, SummaryWriter(str(tmp_path)), preset="torch-cpu")
    with caplog.at_level(logging.INFO, logger=trainer.logger.name):
        trainer.run(loader())
    assert "products ran in bf16" in caplog.text
    assert str(tmp_path / "habana_mp.html") in caplog.text
    assert len(texts_of_tensorboard(tmp_path)) == 1
    assert hmp.report(show=False).configuration["preset"] == "torch-cpu"  # type: ignore[index]  # it has one here


# ---- a framework's own autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("trainer", "(`mixed_precision=` of Accelerate|transformers), .*`bf16=True`"),  # the latter before 5.0
        ("accelerate_loop", "`mixed_precision=` of Accelerate"),
        ("lightning_trainer", "`precision=` of Lightning"),
        ("fabric_loop", "`precision=` of Lightning"),
        ("ignite_engine", "`amp_mode=` of Ignite"),
    ],
)
def test_a_frameworks_own_autocast_under_convert_is_named_with_the_line_of_the_script(
    name: str, switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "ignite_engine":  # its autocast is for CUDA alone
        monkeypatch.setattr(torch.amp, "autocast", lambda *_, **__: torch.autocast("cpu"))
    text = original(name).replace("cross_entropy)", "cross_entropy, amp_mode='amp')")
    hmp.convert(preset="recommended")
    with pytest.warns(HmpWarning, match="torch.autocast is enabled while") as warned:
        run(text, tmp_path)
    (message,) = [str(one.message) for one in warned if "while habana_mp casts" in str(one.message)]
    assert re.search(f"by {switch}", message)
    assert f"in the call at {tmp_path}/script_" in message
    assert "an operation that it lowers runs in its precision whatever they say" in message
