"""The pages of docs/how-to are true: each script runs with the real package, and is compared with the script as it was.

Needs transformers, accelerate, pytorch-lightning, peft, trl, sentence-transformers, diffusers, fastapi and onnx.
"""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from habana_mp import hmp
from habana_mp.frameworks.common import write_report
from helpers.how_to import PAGES, SCRIPTS, changes, copied, original, run, script, shown_report, weights_in
from helpers.processes import in_threads
from helpers.ranks import on_two_ranks

pytestmark = [pytest.mark.usefixtures("quiet_libraries", "one_thread", "counted")]


def losses_of(found: dict[str, Any]) -> list[float]:
    if "losses" in found:
        return list(found["losses"])
    if hasattr(found["model"], "losses"):
        return list(found["model"].losses)
    return [one["loss"] for one in found["trainer"].state.log_history if "loss" in one]


class Training(NamedTuple):
    """A script that trains: its own bf16, its file of weights, and what came after its checkpoint."""

    name: str
    bf16: str
    weights: str
    later: tuple[str, ...]
    #: Where the report is, if the script leaves one.
    report: str = ""


TRAININGS = [
    Training("trainer", "bf16=True, ", "out/final/model.safetensors", ("out/checkpoint-8", "out/final"), "out"),
    Training(
        "accelerate_loop", 'mixed_precision="bf16", ', "out/final/model.safetensors", ("out/final", "out/run"), "out"
    ),
    Training("trl_and_peft", "bf16=True, ", "out/final/adapter_model.safetensors", ("out/checkpoint-8",), "out"),
    Training(
        "sentence_transformers_trainer", "bf16=True, ", "out/final/model.safetensors", ("out/checkpoint-8",), "out"
    ),
    Training(
        "lightning_trainer", '    precision="bf16-mixed",\n', "", ("out/epoch=1.ckpt",), "out/lightning_logs/version_0"
    ),
    Training("fabric_loop", ', precision="bf16-mixed"', "", (), "."),
    Training("diffusers_ema", "", "final/*.safetensors", ("final",)),
]


def without_autocast(text: str) -> str:
    return re.sub(r"    with torch\.autocast.*\n    (.*)\n", r"\1\n", text)


def in_float32(text: str, training: Training) -> str:
    """Returns the script without its own bf16. TRL's default is bf16, too."""
    if not training.bf16:
        return without_autocast(text)
    assert training.bf16 in text
    return text.replace(training.bf16, "bf16=False, " if training.name == "trl_and_peft" else "")


@pytest.mark.parametrize("training", TRAININGS, ids=[one.name for one in TRAININGS])
def test_a_training_is_that_of_convert_by_hand_and_near_the_frameworks_own_bf16(
    training: Training, tmp_path: Path
) -> None:
    text, before = script(training.name), original(training.name)
    found = run(text, tmp_path / "hmp")
    losses, weights = losses_of(found), found["model"].state_dict()
    assert {one.dtype for one in weights.values() if one.is_floating_point()} == {torch.float32}
    if training.weights:
        saved = weights_in(tmp_path / "hmp", training.weights)
        assert {one.dtype for one in saved.values()} == {torch.float32}
    if training.report:
        page = (tmp_path / "hmp" / training.report / "habana_mp.html").read_text("utf-8")
        assert "products ran in bf16" in page

    own = losses_of(run(before, tmp_path / "own"))
    exact = losses_of(run(in_float32(before, training), tmp_path / "exact"))
    assert len(losses) == len(own) == len(exact) == 8
    noise = max(abs(a - b) for a, b in zip(own, exact, strict=True))
    assert 0 < noise < 0.01
    assert max(abs(a - b) for a, b in zip(losses, exact, strict=True)) < 3 * noise

    resumed = run(text, copied(tmp_path / "hmp", tmp_path / "resumed", *training.later))
    assert losses_of(resumed)[-4:] == losses[-4:]
    assert len(losses_of(resumed)) in (4, 8)  # transformers' history has the steps before, too
    torch.testing.assert_close(resumed["model"].state_dict(), weights, rtol=0, atol=0)

    if training.name != "diffusers_ema":  # that script calls convert by itself
        hmp.convert(preset="recommended", rules={"mm": "fp32"} if "sentence" in training.name else None)
        by_hand = run(in_float32(before, training), tmp_path / "by_hand")
        assert losses_of(by_hand) == losses
        torch.testing.assert_close(by_hand["model"].state_dict(), weights, rtol=0, atol=0)


# The page of Fabric shows the report of Lightning's Trainer.
@pytest.mark.parametrize("name", [one.name for one in TRAININGS if one.name != "fabric_loop"])
def test_a_page_shows_the_report_of_its_script(name: str, tmp_path: Path) -> None:
    run(script(name), tmp_path)
    assert set(shown_report(name)) <= set(hmp.report(show=False).words)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda one: one.stem)
def test_a_page_shows_what_is_in_its_script_in_at_most_80_lines_beside_it(page: Path) -> None:
    text = re.sub(r"<!-- \w+\.py table: begin -->.*?table: end -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert len(text.splitlines()) <= 80
    if page.name not in ("README.md", "ci.md"):  # the tests of pages with commands run the latter
        assert changes(page)
        for name, _ in changes(page):
            assert original(name) != script(name)


def test_each_script_has_a_page() -> None:
    shown = {name for page in PAGES.glob("*.md") for name, _ in changes(page)}
    assert shown == {one.stem for one in SCRIPTS.glob("*.py")}


def test_ignite_trains_as_by_hand(tmp_path: Path) -> None:
    found = run(script("ignite_engine"), tmp_path)
    assert list(hmp.report(show=False).words) == shown_report("ignite_engine")
    assert "products ran in bf16" in (tmp_path / "out" / "habana_mp.html").read_text("utf-8")
    hmp.convert(preset="recommended")
    by_hand = run(original("ignite_engine"), tmp_path)
    weights = found["model"].state_dict()
    torch.testing.assert_close(by_hand["model"].state_dict(), weights, rtol=0, atol=0)
    exact = run(original("ignite_engine"), tmp_path)["model"].state_dict()
    assert not torch.equal(exact["0.weight"], weights["0.weight"])


@pytest.mark.usefixtures("compiled_anew")
def test_a_compiled_model_trains_as_under_torch_autocast(tmp_path: Path) -> None:
    losses = run(script("compiled"), tmp_path)["losses"]
    own = run(original("compiled"), tmp_path)["losses"]
    assert losses == pytest.approx(own, abs=0.01)
    saved = torch.load(tmp_path / "model.pt")
    assert {one.dtype for one in saved.values()} == {torch.float32}


def test_a_service_answers_in_several_threads_as_in_one(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    client = TestClient(run(script("serving").replace("hmp.convert", "pass  # "), tmp_path)["service"])
    hmp.convert(preset="recommended")
    client.post("/generate", json={"tokens": [1, 2, 3]})
    assert hmp.report(show=False).words[0] == shown_report("serving")[0]
    prompts = [[i, i + 1, i + 2] for i in range(1, 9)]
    alone = [client.post("/generate", json={"tokens": one}).json() for one in prompts]
    answers: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        answers[i] = client.post("/generate", json={"tokens": prompts[i]}).json()

    in_threads(ask, len(prompts))
    assert [answers[i] for i in range(len(prompts))] == alone
    report = hmp.report(show=False)
    assert report.weights.hits > report.weights.weights == 15


def test_a_model_in_bfloat16_answers_in_bfloat16(tmp_path: Path) -> None:
    found = run(script("half_precision"), tmp_path)
    assert set(shown_report("half_precision")) <= set(hmp.report(show=False).words)
    own = run(original("half_precision"), tmp_path)
    assert found["logits"].dtype is own["logits"].dtype is torch.bfloat16
    torch.testing.assert_close(found["logits"], own["logits"], rtol=0.05, atol=0.02)


def test_exported_programs_have_the_casts_and_run_without_habana_mp(tmp_path: Path) -> None:
    import onnx

    found = run(script("export"), tmp_path)
    assert not hmp.is_converted()
    model, (x,) = found["model"], found["example"]
    hmp.convert(preset="recommended")
    expected = model(x)
    hmp.restore()
    program = torch.export.load(tmp_path / "model.pt2")
    assert {one.dtype for one in program.state_dict.values()} == {torch.float32}
    results = [program.module()(x), torch._inductor.aoti_load_package(str(tmp_path / "model.aoti.pt2"))(x)]
    for result in results:
        assert result.dtype is torch.float32  # it leaves the model
        torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
    graph = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(graph)
    assert {one.data_type for one in graph.graph.initializer} == {onnx.TensorProto.BFLOAT16}


def test_the_cells_of_a_notebook_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(script("notebook"), tmp_path)
    assert "All 2 products ran in bf16" in capsys.readouterr().out


def run_on_rank(text: str, folder: str, *arguments: str) -> list[float]:
    """Runs a script whose group is that of the test."""
    with patch.object(dist, "init_process_group"), patch.object(dist, "destroy_process_group"):
        found = run(text, Path(folder), *arguments)
    dist.barrier()
    return list(found["losses"])


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ddp_and_fsdp_train_as_under_torch_autocast_and_resume(way: str, tmp_path: Path) -> None:
    distributed_training(way=way, folder=str(tmp_path))


@on_two_ranks
def distributed_training(way: str, folder: str) -> None:
    torch.set_num_threads(1)
    losses = run_on_rank(script("ddp_and_fsdp"), folder + "/hmp", way)
    assert list(hmp.report(ranks=True, show=False).words) == shown_report("ddp_and_fsdp")
    own = run_on_rank(original("ddp_and_fsdp"), folder + "/own", way)
    exact = run_on_rank(without_autocast(original("ddp_and_fsdp")), folder + "/exact", way)
    assert losses != exact
    noise = max(abs(a - b) for a, b in zip(own, exact, strict=True))
    assert losses == pytest.approx(exact, abs=3 * noise)
    weights, _ = torch.load(folder + "/hmp/half.pt")
    assert {one.dtype for one in weights.values()} == {torch.float32}
    assert run_on_rank(script("ddp_and_fsdp"), folder + "/hmp", way) == losses[4:]


@on_two_ranks
def test_with_a_policy_fsdp2_casts_before_habana_mp_does() -> None:
    """The table of docs/how-to/ddp-and-fsdp.md."""
    hmp.convert(preset="recommended")
    casts = []
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
        hmp.reset_report()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10))
        torch.distributed.fsdp.fully_shard(model, mp_policy=policy)
        assert isinstance(model, FSDPModule)
        seen: list[torch.dtype] = []
        model[2].register_forward_hook(lambda one, *_, seen=seen: seen.append(one.weight.dtype))
        torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.zeros(32, dtype=torch.long)).backward()
        assert {one.grad.dtype for one in model.parameters() if one.grad is not None} == {torch.float32}
        assert {one.dtype for one in model.parameters()} == {torch.float32}
        rows = {row.operation: row for row in hmp.report(show=False)}
        assert rows["linear"].precision == "bf16"
        casts.append((seen[0], rows["linear"].casts))
    assert casts == [(torch.float32, 5), (torch.bfloat16, 0)]
    hmp.reset_report()
    gc.collect()


def test_of_two_ranks_the_first_writes_the_report_of_a_plugin_for_both(tmp_path: Path) -> None:
    write_on_two_ranks(folder=str(tmp_path))
    content = (tmp_path / "habana_mp.html").read_text("utf-8")
    assert "All 2 products ran in bf16" in content


@on_two_ranks
def write_on_two_ranks(folder: str) -> None:
    hmp.reset_report()
    hmp.convert(preset="recommended")
    torch.nn.Linear(16, 16)(torch.ones(2, 16))
    write_report(folder if dist.get_rank() == 0 else "/dev/null/no folder", logging.getLogger("ignored"))
    hmp.reset_report()
