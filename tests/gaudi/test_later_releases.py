"""What scripts of later releases use: regions, ``gpu_migration``, Gaudi's backend of torch.compile, whole scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.gaudi import gaudi


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


def test_migration_from_cuda() -> None:
    gaudi(
        """
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
        PT_HPU_GPU_MIGRATION="1",
    )


def test_gaudis_backend_of_torch_compile() -> None:
    gaudi(
        """
        import pytest, torch._dynamo
        import habana_frameworks.torch.core as htcore
        from habana_frameworks.torch.dynamo.compile_backend.experimental import enable_compiled_autograd
        from habana_frameworks.torch.hpex import hmp
        assert not htcore.is_lazy()
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("hpu")
        x = torch.ones(2, 4, device="hpu")
        for name in ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend"):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend=name, options={"keep_input_mutations": True})
            assert torch.allclose(compiled(x), model(x), atol=1e-6)
        enable_compiled_autograd()
        compiled(x).sum().backward()
        assert model[0].weight.grad.is_hpu
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
        assert compiled(x).dtype is torch.bfloat16
        hmp.restore()
        habana_mp.gaudi.switch_off()
        with pytest.raises(RuntimeError, match="hpu_backend"):
            torch.compile(model, backend="hpu_backend")(x)
        """,
        PT_HPU_LAZY_MODE="0",
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
            compiled = torch.compile(F.cross_entropy, backend="aot_eager", fullgraph=True)(scores, labels)
            assert torch.allclose(compiled, F.cross_entropy(scores, labels.long()))
        assert F.cross_entropy(scores, scores.softmax(-1)).item() > 0  # probabilities stay as they are
        """
    )


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


#: What the import of optimum-habana does in a release for autocast.
OPTIMUM = """
from packaging import version
CURRENTLY_VALIDATED_SYNAPSE_VERSION = version.parse("1.12.0")
def get_habana_frameworks_version():
    return version.parse("")
def get_device_name():
    raise ValueError("Unsupported device")
"""


@pytest.mark.parametrize("release", ["1.18", "1.19"])
def test_optimum_habana_gets_a_release_and_a_device(release: str, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "optimum" / "habana"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    if release == "1.18":
        (folder / "utils.py").write_text(OPTIMUM)
    else:
        (folder / "utils").mkdir()
        (folder / "utils" / "misc.py").write_text(OPTIMUM)
        (folder / "utils" / "__init__.py").write_text("from .misc import *\n")
    (folder / "__init__.py").write_text(
        "from .utils import get_device_name, get_habana_frameworks_version\n"
        "found = get_habana_frameworks_version().minor, get_device_name()\n"
    )
    code = """
        import optimum.habana, pytest
        assert optimum.habana.found == (12, "gaudi")
        habana_mp.gaudi.switch_off()
        utils = optimum.habana.utils
        with pytest.raises(ValueError):
            getattr(utils, "misc", utils).get_device_name()
        """
    gaudi(code, PYTHONPATH=str(tmp_path / "site-packages"))
