"""What scripts of later releases use: regions, ``gpu_migration``, Gaudi's backend of torch.compile, whole scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gaudi.test_gaudi_scripts import number, started
from helpers.gaudi import gaudi, run_gaudi

#: What these scripts need and map, other than the rest.
EXPECTED: dict[str, Any] = {
    "compiled.py": {"lazy": "0"},
    "migrated_diffusion.py": {"mapped": "cuda"},
    "migrated_from_cuda.py": {"mapped": "cuda"},
    "speech_ctc.py": {"mapped": "hpu:0"},
}


def test_a_region_of_another_device_changes_nothing() -> None:
    gaudi(
        """
        from habana_frameworks.torch.hpex import hmp
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
        x = torch.ones(2, 2, device="hpu")
        full, lower = torch.float32, torch.bfloat16
        for given, expected in (
            (("cuda", False), lower), (("xpu", False), lower), (("hpu", False), full), (("cpu", False), full),
        ):
            with torch.autocast(given[0], enabled=given[1]):
                assert (x @ x).dtype is expected, given
        with torch.cuda.amp.autocast(enabled=False):  # fairseq
            assert (x @ x).dtype is lower
        with torch.cuda.amp.autocast(dtype=lower):  # torch switches it off, since there is no CUDA
            assert (x @ x).dtype is lower
        with torch.autocast("cpu", enabled=False):
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype is full
            with torch.autocast("hpu"):
                assert (x @ x).dtype is lower
            assert (x @ x).dtype is full
        assert (x @ x).dtype is lower
        habana_mp.gaudi.switch_off()
        with torch.autocast("cuda", enabled=False):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is full
        """
    )


def test_without_the_stand_in_the_report_names_a_region_of_a_device_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\nx = torch.ones(2, 2)\nfor _ in range(3):\n"
        "    with torch.autocast('xpu', enabled=False):\n        x @ x\nwith torch.autocast('cpu', enabled=False):\n"
        "    x @ x\n"
    )
    command = [sys.executable, "-m", "habana_mp", "run", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    first = done.stderr.splitlines()[1]
    assert (
        "Casts are off in the disabled region of torch.autocast for xpu at script.py:4, though no xpu is here" in first
    )
    assert "--gaudi" in first


@pytest.mark.parametrize("by", ["import habana_frameworks.torch.gpu_migration", ""])
def test_migration_from_cuda(by: str) -> None:
    environment = {} if by else {"PT_HPU_GPU_MIGRATION": "1"}
    gaudi(
        f"""
        {by or "pass"}
        import warnings
        warnings.simplefilter("ignore", FutureWarning)
        x = torch.ones(2, 2).cuda()
        full, lower = torch.float32, torch.bfloat16
        for region, expected in (
            (torch.cuda.amp.autocast(), lower), (torch.cuda.amp.autocast(dtype=torch.float16), lower),
            (torch.autocast("cuda"), lower), (torch.autocast("cuda", torch.float16), lower),
            (torch.cuda.amp.autocast(enabled=False), full), (torch.autocast("hpu"), lower),
        ):
            with region:
                assert (x @ x).dtype is expected
        for scaler in (torch.cuda.amp.GradScaler(), torch.amp.GradScaler("cuda"), torch.amp.GradScaler()):
            assert not scaler.is_enabled() and scaler.scale(x) is x
        cuda = torch.cuda
        assert cuda.is_available() and cuda.device_count() == 1 and cuda.current_device() == 0 and cuda.is_initialized()
        assert cuda.get_device_capability() == (0, 0) and cuda.get_device_properties(0).total_memory > 0
        assert cuda.get_device_name(0) == cuda.get_device_properties(0).name and cuda.can_device_access_peer(0, 0)
        cuda.init(), cuda.set_device(0), cuda.empty_cache(), cuda.ipc_collect(), cuda.synchronize()
        cuda.manual_seed(3)
        first, state = torch.randn(2, device="cuda"), cuda.get_rng_state()
        cuda.manual_seed_all(3)
        assert torch.equal(first, torch.randn(2).cuda()) and torch.equal(state, cuda.get_rng_state())
        assert torch.Generator(device="cuda").manual_seed(1).initial_seed() == 1
        with cuda.device(0), cuda.stream(cuda.Stream()):
            assert cuda.current_stream().query()
        assert 0 < cuda.memory_allocated() <= cuda.max_memory_allocated() and "InUse" in cuda.memory_stats()
        """,
        **environment,
    )


def test_each_mapped_call_is_logged_once_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\nimport habana_frameworks.torch.gpu_migration\nfor _ in range(3):\n"
        "    torch.cuda.is_available()\n    torch.cuda.amp.GradScaler()\n"
    )
    command = [sys.executable, "-W", "ignore", "-m", "habana_mp", "run", "--gaudi=cpu", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    logged = [line for line in done.stderr.splitlines() if line.startswith("habana_mp.gaudi: ")]
    assert [line.partition("script.py:")[2] for line in logged] == [
        "4: cuda is cpu here (torch.cuda.is_available)",
        "5: cuda is cpu here (torch.amp.GradScaler)",
    ]


def test_gaudis_backend_of_torch_compile() -> None:
    gaudi(
        """
        import torch._dynamo
        from habana_frameworks.torch.hpex import hmp
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("hpu")
        x = torch.ones(2, 4, device="hpu")
        for name in ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend"):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend=name, options={"keep_input_mutations": True})
            assert torch.allclose(compiled(x), model(x), atol=1e-6)
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
        assert compiled(x).dtype is torch.bfloat16
        hmp.restore()
        habana_mp.gaudi.switch_off()
        try:
            torch.compile(model, backend="hpu_backend")(x)
        except RuntimeError as error:
            assert "hpu_backend" in str(error)
        else:
            raise AssertionError
        """
    )


def test_labels_in_int32() -> None:
    gaudi(
        """
        import torch.nn.functional as F
        from habana_frameworks.torch.hpex import hmp
        scores, labels = torch.randn(4, 5, device="hpu"), torch.tensor([1, 2, 3, 0], dtype=torch.int32)
        def losses(labels):
            log = scores.log_softmax(-1)
            smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
            return F.cross_entropy(scores, labels), smooth(scores, labels), F.nll_loss(log, labels)
        for converted in (False, True):
            if converted:
                hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
            assert losses(labels) == losses(labels.long())
            compiled = torch.compile(F.cross_entropy, fullgraph=True)(scores, labels)
            assert torch.allclose(compiled, F.cross_entropy(scores, labels.long()))
        assert F.cross_entropy(scores, scores.softmax(-1)).item() > 0  # probabilities stay as they are
        """
    )


def test_the_reference_in_float32_needs_no_edit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom habana_frameworks.torch.hpex import hmp\n"
        "hmp.convert(opt_level='O1', bf16_file_path='', fp32_file_path='', isVerbose=False)\n"
        "x = torch.ones(2, 2, device='hpu')\nprint((x @ x).dtype)\n"
        "with torch.autocast('hpu'):\n    print((x @ x).dtype)\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "habana_mp", "run", *words, "script.py"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert run("--gaudi").stdout.split() == ["torch.bfloat16"] * 2
    assert run("--gaudi=", "--opt-level", "o0").stdout.split() == ["torch.float32"] * 2
    for words, expected in (
        ((), "the script is written for Gaudi: `habana-mp run --gaudi`"),
        (("--gaudi", "cpu"), "a device stands after a `=`: --gaudi=cpu"),
        (("--gaudi=cpu:1",), "`device` must be one of 1 here, numbered from 0; got 'cpu:1'"),
        (("--gaudi", "--opt-level=O2"), "--opt-level O0 alone does"),
    ):
        done = run(*words)
        assert done.returncode != 0
        assert expected in done.stderr, done.stderr
    script.write_text("import torch\ntorch.ones(2, device='hpu')\n")
    assert "the script is written for Gaudi" in run().stderr


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("ddp_autocast.py", ["--autocast"]),
        ("migrated_from_cuda.py", ["--amp"]),
        ("compiled.py", ["--autocast"]),
        ("fused_decoder.py", ["--autocast", "--hmp"]),
        ("fairseq_like.py", ["--hmp"]),
        ("inference_graphs.py", ["--bf16"]),
        ("lightning_plugin.py", ["--bf16", "--hmp"]),
        ("migrated_diffusion.py", ["--amp"]),
        ("mixture_of_experts.py", ["--autocast", "--hmp"]),
        ("speech_ctc.py", ["--autocast"]),
        ("trainer_loop.py", ["--bf16"]),
    ],
)
def test_whole_scripts_train_in_mixed_precision_as_in_fp32(script: str, options: list[str], tmp_path: Path) -> None:
    environment = EXPECTED.get(script, {})
    exact = number("final loss", started(tmp_path, script, **environment))
    assert exact < 0.5
    for option in options:
        mixed = number("final loss", started(tmp_path, script, option, **environment))
        assert abs(mixed - exact) < 0.02, option


@pytest.mark.parametrize(("script", "option"), [("ddp_autocast.py", "--autocast"), ("migrated_from_cuda.py", "--amp")])
def test_whole_scripts_train_in_two_processes(script: str, option: str, tmp_path: Path) -> None:
    plain, mixed = (
        started(tmp_path, script, *words, processes=2, **EXPECTED.get(script, {})) for words in ((), (option,))
    )
    assert plain.count("final loss") == mixed.count("final loss") == 1
    assert abs(number("final loss", mixed) - number("final loss", plain)) < 0.05


def test_weights_in_bfloat16_with_a_master_copy(tmp_path: Path) -> None:
    assert number("final loss", started(tmp_path, "deepspeed_like.py", "--deterministic")) < 0.5


def test_a_device_may_be_given_by_its_number() -> None:
    gaudi(
        """
        x, model = torch.ones(2, 2), torch.nn.Linear(2, 2)
        number = torch.hpu.current_device()
        assert x.to(0) is x and x.to(number, torch.float64).dtype is torch.float64 and x.to(device=0).is_hpu
        assert model.to(0) is model and model.to(device=number) is model
        assert torch.zeros(2, device=number).is_hpu and x.new_zeros(2, device=0).is_hpu
        assert x.new(3).shape == (3,) and torch.equal(x.new_full((2,), 1), torch.ones(2))
        assert torch.Generator(device=0).manual_seed(1).initial_seed() == 1
        torch.set_default_device(0)
        assert torch.zeros(1).is_hpu
        torch.set_default_device(None)
        compiled = torch.compile(lambda x: x.to(0) + torch.ones(2, device=0), backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), x + 1)
        x.record_stream(torch.hpu.current_stream())
        """
    )


def test_functions_of_autograd_cast_their_inputs() -> None:
    gaudi(
        """
        import habana_frameworks.torch.gpu_migration
        import warnings
        from habana_mp import hmp
        warnings.simplefilter("ignore", FutureWarning)
        lower, full = torch.bfloat16, torch.float32

        def function(forward, backward):
            class Product(torch.autograd.Function):
                @staticmethod
                @forward
                def forward(ctx, x):
                    ctx.inside = x.dtype, (x @ x).dtype
                    seen.append(ctx.inside)
                    return x @ x
                @staticmethod
                @backward
                def backward(ctx, gradient):
                    seen.append(gradient.dtype)
                    return gradient
            return Product.apply

        for to in (lower, full):
            for forward, backward in (
                (torch.amp.custom_fwd(device_type="hpu", cast_inputs=to), torch.amp.custom_bwd(device_type="hpu")),
                (hmp.custom_fwd(device_type="hpu", cast_inputs=to), hmp.custom_bwd(device_type="hpu")),
                (torch.cuda.amp.custom_fwd(cast_inputs=to), torch.cuda.amp.custom_bwd),
            ):
                seen, apply = [], function(forward, backward)
                given = torch.ones(2, 2, dtype=full if to is lower else lower, requires_grad=True)
                apply(given)
                assert seen == [(given.dtype, given.dtype)], seen  # outside of regions it casts nothing
                seen.clear()
                with torch.autocast("hpu"):
                    result = apply(given)
                result.sum().backward()
                assert seen == [(to, to), to], (to, seen)
        """
    )


def test_torch_says_if_a_region_of_hpu_is_on() -> None:
    gaudi(
        """
        on, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        assert not on("hpu") and dtype("hpu") is torch.bfloat16
        with torch.autocast("hpu"):
            assert on("hpu") is True and on(device_type="hpu") and not on("cpu") and not on("cuda")
            with torch.autocast("hpu", enabled=False):
                assert not on("hpu")
            assert on("hpu")
        assert not on("hpu")
        import habana_frameworks.torch.gpu_migration
        assert not on("cuda") and torch.get_autocast_dtype("cuda") is torch.bfloat16
        with torch.autocast("cuda"):
            assert on("cuda") and on("hpu") and torch.get_autocast_dtype("hpu") is torch.bfloat16
        habana_mp.gaudi.switch_off()
        assert torch.get_autocast_dtype is dtype
        """
    )


def test_modules_and_classes_of_torch_cuda_migrate() -> None:
    gaudi(
        """
        import io, habana_frameworks.torch.gpu_migration
        cuda, x = torch.cuda, torch.ones(2, 2)
        assert cuda.memory.memory_allocated() > 0 and cuda.memory.max_memory_allocated() > 0
        stats = cuda.memory_stats()
        assert 0 < stats["allocated_bytes.all.current"] <= stats["allocated_bytes.all.peak"]
        assert cuda.memory.memory_stats().keys() == stats.keys() and "reserved_bytes.all.peak" in stats
        cuda.random.manual_seed_all(3)
        first, state = torch.rand(2), cuda.random.get_rng_state()
        cuda.default_generators[0].manual_seed(3)
        assert torch.equal(first, torch.rand(2)) and torch.equal(state, cuda.random.get_rng_state())
        with torch.random.fork_rng(devices=[0]):
            inside = torch.rand(1)
        assert torch.equal(inside, torch.rand(1))
        with cuda.nvtx.range("step {}", 1):
            cuda.nvtx.range_push("forward"), cuda.nvtx.mark("here"), cuda.nvtx.range_pop()
            cuda.nvtx.range_end(cuda.nvtx.range_start("backward"))
        graph, given = cuda.CUDAGraph(), torch.ones(2, device="cuda")
        with cuda.graph(graph, pool=cuda.graph_pool_handle()):
            doubled = given * 2
        given.fill_(3)
        graph.replay()
        assert doubled.tolist() == [6.0, 6.0]
        made = cuda.FloatTensor([1.0, 2.0])
        assert isinstance(made, cuda.FloatTensor) and made.is_cuda and cuda.LongTensor(3).dtype is torch.long
        assert x.type(cuda.HalfTensor).dtype is x.type("torch.cuda.HalfTensor").dtype is torch.half
        assert x.type() == "torch.FloatTensor" and x.type(torch.double).dtype is torch.double
        saved = io.BytesIO()
        torch.save(x, saved)
        for where in (lambda s, _: s.cuda(), lambda s, _: s.cuda(0), lambda s, _: s.hpu(), "cuda", {"cpu": "cuda:0"}):
            saved.seek(0)
            assert torch.equal(torch.load(saved, map_location=where), x)
        compiled = torch.compile(lambda x: x.cuda() + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), x + 1)
        """
    )


def test_a_region_of_cuda_gives_no_warning_of_ours() -> None:
    gaudi(
        """
        import warnings, habana_frameworks.torch.gpu_migration
        warnings.simplefilter("ignore", FutureWarning)
        with warnings.catch_warnings(record=True) as caught:
            with torch.cuda.amp.autocast():
                pass
        assert not [one for one in caught if "cache_enabled" in str(one.message)], caught
        """
    )


NORMS = """
import copy, torch
import torch.distributed as dist
from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu
size, rank, _ = initialize_distributed_hpu()
dist.init_process_group("hccl", rank=rank, world_size=size)
torch.manual_seed(0)
for momentum in (0.1, None):
    alone = torch.nn.BatchNorm1d(3, momentum=momentum).double()
    torch.nn.init.normal_(alone.weight)
    together = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)).to("hpu")
    part = slice(0, 2) if rank == 0 else slice(2, 5)
    for _ in range(2):
        x, weights = torch.randn(5, 3, 4, dtype=torch.float64) + 2, torch.randn(5, 3, 4, dtype=torch.float64)
        y = x[part].clone().requires_grad_()
        expected, found = alone(x.requires_grad_()), together(y)
        (expected * weights).sum().backward(), (found * weights[part]).sum().backward()
        assert torch.allclose(found, expected[part]) and torch.allclose(y.grad, x.grad[part])
    dist.all_reduce(together.weight.grad)
    assert torch.allclose(together.weight.grad, alone.weight.grad)
    for name, one in alone.named_buffers():
        assert torch.allclose(one, together.get_buffer(name)), name
    assert torch.allclose(alone.eval()(x), together.eval()(x))
print("final loss 0.0")
"""


def test_batch_norms_are_synchronised_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "norms.py").write_text(NORMS)
    assert started(tmp_path, str(tmp_path / "norms.py"), processes=2).count("final loss 0.0") == 2


def test_a_wrong_level_in_the_environment_is_found_at_once(tmp_path: Path) -> None:
    done = run_gaudi("print('reached')", HABANA_MP_OPT_LEVEL="O7")
    assert done.returncode == 1
    assert (done.stdout, "HABANA_MP_OPT_LEVEL must be O0" in done.stderr) == ("", True)
    (tmp_path / "script.py").write_text("print('reached')")
    command = [sys.executable, "-m", "habana_mp", "run", "--gaudi", "script.py"]
    environment = {**os.environ, "HABANA_MP_OPT_LEVEL": "O7"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "habana-mp run: error: HABANA_MP_OPT_LEVEL must be O0" in done.stderr


def test_the_report_names_only_regions_that_matter_and_each_compiled_function_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    command = [sys.executable, "-m", "habana_mp", "run", "script.py"]
    script.write_text(
        "import torch\nx = torch.ones(2, 2)\nx @ x\nwith torch.autocast('xpu', enabled=False):\n    pass\nx @ x\n"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "though no xpu is here" not in done.stderr
    script.write_text(
        "import torch\n\ndef function(x):\n    with torch.autocast('xpu', enabled=False):\n        x = x @ x\n"
        "        print()\n        return x @ x\n\ncompiled = torch.compile(function, backend='eager')\n"
        "for size in (2, 3, 4):\n    compiled(torch.ones(size, size))\n"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "torch.autocast for xpu at script.py:3, though no xpu is here" in done.stderr, done.stderr


#: What the import of optimum-habana does in a release for autocast.
OPTIMUM = """
from packaging import version
CURRENTLY_VALIDATED_SYNAPSE_VERSION = version.parse("1.12.0")
def get_habana_frameworks_version():
    return version.parse("")
def get_device_name():
    raise ValueError("Unsupported device")
"""


def test_optimum_habana_gets_a_release_and_a_device(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "optimum" / "habana"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "utils.py").write_text(OPTIMUM)
    (folder / "__init__.py").write_text(
        "from .utils import get_device_name, get_habana_frameworks_version\n"
        "found = get_habana_frameworks_version().minor, get_device_name()\n"
    )
    code = """
        import optimum.habana
        assert optimum.habana.found == (12, "gaudi")
        habana_mp.gaudi.switch_off()
        try:
            optimum.habana.utils.get_device_name()
        except ValueError:
            print("restored")
        """
    assert gaudi(code, PYTHONPATH=str(tmp_path / "site-packages")) == ["restored"]
