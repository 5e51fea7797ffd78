"""``"hpu"`` leads to the device that was chosen, wherever torch takes a device."""

from __future__ import annotations

import textwrap
from pathlib import Path

from helpers.gaudi import gaudi, run_gaudi


def test_factories_and_methods_take_hpu() -> None:
    gaudi(
        """
        import inspect
        x = torch.arange(6.0, device="hpu").reshape(2, 3)
        made = [
            torch.as_tensor([1.0], device="hpu"), torch.empty(2, device="hpu:0"), torch.empty_like(x, device="hpu"),
            torch.eye(2, device="hpu"), torch.full((2,), 1.0, device="hpu"), torch.linspace(0, 1, 3, device="hpu"),
            torch.ones(2, device=torch.device("hpu")), torch.rand(2, device=torch.device("hpu", 0)),
            torch.randint(0, 3, (2,), device="hpu"), torch.randperm(3, device="hpu"), torch.tensor(1, device="hpu"),
            torch.zeros_like(x, device="hpu"), torch.normal(0.0, 1.0, (2,), device="hpu"),
            torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="hpu"), torch.fft.fftfreq(4, device="hpu"),
            x.new_zeros(2, device="hpu"), x.new_tensor([1.0], device="hpu"), x.new_full((1,), 2.0, device="hpu"),
            x.to("hpu"), x.to("hpu:0", torch.float64), x.to(device="hpu", non_blocking=True), x.hpu(), x.hpu(0),
            x.hpu(non_blocking=True), x.pin_memory("hpu"),
        ]
        assert {one.device.type for one in made} == {"hpu"}, made
        assert all(inspect.getattr_static(torch.Tensor, "device").__get__(one, None) for one in made)
        assert torch.equal(torch.full((2,), 3.0, device="hpu"), torch.full((2,), 3.0))
        assert x.to("hpu", torch.float64).dtype is torch.float64
        with torch.device("hpu"):
            assert torch.zeros(1).device.type == "hpu"
        torch.set_default_device("hpu")
        assert torch.zeros(1).device.type == "hpu"
        torch.set_default_device(None)
        """
    )


def test_modules_move_to_hpu_and_train() -> None:
    gaudi(
        """
        model = torch.nn.Sequential(torch.nn.Linear(4, 3, device="hpu"), torch.nn.BatchNorm1d(3))
        for moved in (model.to("hpu"), model.to(torch.device("hpu")), model.hpu(), model.to(device="hpu:0"),
                      model.to("hpu", torch.float64), model.to_empty(device="hpu")):
            assert moved is model
            assert next(model.parameters()).device.type == "hpu"
        model = torch.nn.Linear(4, 3).to("hpu")
        weight = model.weight
        assert model.to("hpu").weight is weight
        model(torch.ones(2, 4, device="hpu")).sum().backward()
        assert weight.grad.device.type == "hpu" and weight.grad.is_hpu
        """
    )


def test_the_script_sees_hpu_and_torch_and_libraries_see_the_real_device(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "some_library.py").write_text("def device_of(x):\n    return x.device\n")
    gaudi(
        """
        import argparse
        args = argparse.Namespace(device="hpu")
        assert args.device == "hpu" and torch.device(args.device).type == "hpu"
        x = torch.ones(2, device=args.device)
        assert x.device.type == "hpu" and str(x.device) == "hpu:0" and x.device == torch.device("hpu:0")
        assert x.device == x.to(x.device).device and x.is_hpu and not x.is_cuda
        assert torch.ones(1, device="meta").device.type == "meta"
        assert repr(x) == "tensor([1., 1.])"
        # torch's own code
        from torch.utils.checkpoint import get_device_states
        assert get_device_states(x) == ([], [])  # it looks for tensors that are not on the CPU
        # a library's
        import some_library
        assert some_library.device_of(x) == torch.device("cpu")
        # Of the class it is torch's own descriptor: torch.overrides knows functions by it.
        assert torch.Tensor.device is torch._C.TensorBase.device and torch.Tensor.to is torch._C.TensorBase.to
        """,
        PYTHONPATH=str(tmp_path / "site-packages"),
    )


def test_generators_and_their_states() -> None:
    gaudi(
        """
        g = torch.Generator(device="hpu").manual_seed(3)
        first = torch.randn(3, generator=g, device="hpu")
        assert torch.equal(first, torch.randn(3, generator=torch.Generator().manual_seed(3)))
        assert isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
        assert not isinstance(3, torch.Generator)
        class Own(torch.Generator):
            pass
        assert type(Own("hpu")) is Own and issubclass(Own, torch.Generator) and not isinstance(g, Own)
        with torch.random.fork_rng(device_type="hpu"):
            inside = torch.randn(1)
        assert torch.equal(inside, torch.randn(1))
        """
    )


def test_files_load_to_hpu_and_those_saved_on_one_load() -> None:
    gaudi(
        """
        import io
        from collections import OrderedDict
        saved = io.BytesIO()
        torch.save({"w": torch.arange(3.0, device="hpu")}, saved)
        locations = ("hpu", "hpu:0", torch.device("hpu"), {"cpu": "hpu"}, {"hpu:0": "hpu:0"}, lambda s, _: s, None)
        for location in locations:
            saved.seek(0)
            loaded = torch.load(saved, map_location=location)["w"]
            assert torch.equal(loaded, torch.arange(3.0)) and loaded.device.type == "hpu", location
        saved.seek(0)
        assert torch.load(saved, "hpu")["w"].device.type == "hpu"
        # As an HPU writes it: the storage's location is the device's name.
        on_hpu = io.BytesIO()
        tag = torch.serialization.location_tag
        torch.serialization.location_tag = lambda storage: "hpu:0"
        torch.save(torch.arange(3.0), on_hpu)
        torch.serialization.location_tag = tag
        for location in (None, "hpu", "cpu"):
            on_hpu.seek(0)
            assert torch.equal(torch.load(on_hpu, map_location=location), torch.arange(3.0)), location
        """
    )


def test_autocast_of_hpu_has_hpus_lists() -> None:
    gaudi(
        """
        import pytest
        from habana_mp import hmp
        linear, x = torch.nn.Linear(4, 4).to("hpu"), torch.ones(2, 4, device="hpu")
        with torch.autocast(device_type="hpu", dtype=torch.bfloat16):
            assert linear(x).dtype is torch.bfloat16 and torch.nn.functional.cross_entropy(
                linear(x), torch.zeros(2, dtype=torch.long)).dtype is torch.float32
            with torch.autocast("hpu", enabled=False):
                assert linear(x).dtype is torch.float32
            assert hmp.is_autocast_enabled("hpu") and hmp.get_autocast_dtype("hpu") is torch.bfloat16
        assert linear(x).dtype is torch.float32 and not hmp.is_autocast_enabled("hpu")
        with torch.autocast(x.device.type):
            assert linear(x).dtype is torch.bfloat16
        with hmp.autocast("hpu"):
            assert linear(x).dtype is torch.bfloat16
        @torch.autocast("hpu")
        def function():
            return linear(x)
        assert function().dtype is torch.bfloat16
        with torch.autocast("cpu"):  # torch's own is as it was
            assert linear(x).dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
        with pytest.raises(ValueError, match="hpu"):
            torch.autocast("hpu", torch.float16)
        scaler = torch.amp.GradScaler("hpu", enabled=False)
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        scaler.scale(linear(x).sum()).backward()
        scaler.step(optimizer)
        """
    )


def test_loaders_pin_for_hpu_without_a_warning() -> None:
    code = """
        import warnings
        warnings.simplefilter("error")
        from torch.utils.data import DataLoader
        from habana_dataloader import HabanaDataLoader
        for loader in (DataLoader, HabanaDataLoader):
            loaded = loader([torch.ones(1)] * 4, batch_size=2, pin_memory=True, pin_memory_device="hpu", num_workers=1)
            print([tuple(batch.to("hpu").shape) for batch in loaded], isinstance(loaded, DataLoader))
        """
    assert gaudi(code) == ["[(2, 1), (2, 1)] True"] * 2


def test_compiled_code_takes_hpu() -> None:
    code = """
        import torch
        @torch.compile(backend="eager", fullgraph=True)
        def function(x):
            return x.to("hpu") + torch.ones(2, device="hpu") + torch.zeros_like(x, device=torch.device("hpu"))
        print(function(torch.ones(2)).tolist())
        """
    assert gaudi(code) == ["[2.0, 2.0]"]


def test_scripted_and_traced_code_and_other_kinds_of_tensors(tmp_path: Path) -> None:
    (tmp_path / "scripted.py").write_text(
        "import torch\n@torch.jit.script\ndef function(x):\n    return x + torch.zeros(2, device=x.device)\n"
    )
    code = """
        import copy, pickle, scripted
        from torch._subclasses.fake_tensor import FakeTensorMode
        x = torch.ones(2, device="hpu")
        assert torch.equal(scripted.function(x), x)
        traced = torch.jit.trace(torch.nn.Linear(2, 2).to("hpu"), torch.ones(1, 2, device="hpu"))
        assert traced(torch.ones(1, 2)).shape == (1, 2) and traced.to("hpu") is traced
        with FakeTensorMode():
            assert torch.zeros(2, device="hpu").device.type == "cpu"
        class Own(torch.Tensor):
            pass
        own = x.as_subclass(Own).to("hpu")
        assert type(own) is Own and own.device.type == "hpu"
        assert torch.func.vmap(lambda one: one.to("hpu") + torch.zeros(1, device="hpu"))(x[:, None]).shape == (2, 1)
        assert torch.nn.utils.rnn.pack_sequence([x]).to("hpu").data.is_hpu
        assert pickle.loads(pickle.dumps(x)).is_hpu and copy.deepcopy(torch.nn.Linear(2, 2).hpu()).weight.is_hpu
        parameter = torch.nn.Parameter(x)
        assert parameter.hpu() is parameter
        """
    gaudi(code, PYTHONPATH=str(tmp_path))


def test_what_was_mapped_is_told_once_for_each_line() -> None:
    done = run_gaudi("for _ in range(3):\n    torch.ones(1, device='hpu')\ntorch.ones(1).to('hpu:0')\n")
    assert done.stderr.splitlines() == [
        "habana_mp.gaudi: <string>:4: hpu is cpu here (torch.ones)",
        "habana_mp.gaudi: <string>:5: hpu:0 is cpu here (Tensor.to)",
    ]
    quiet = "import logging; logging.getLogger('habana_mp.gaudi').setLevel('WARNING'); torch.ones(1, device='hpu')"
    assert run_gaudi(quiet).stderr == ""


def test_operations_that_fall_back_to_the_cpu_are_logged_where_that_is_asked_for() -> None:
    code = """
        import habana_frameworks.torch.core
        x = torch.ones(2, 2, device="hpu", dtype=torch.half, requires_grad=True)
        for _ in range(2):
            torch.tril(x)
        x.float().exp().sum().backward()
        """
    done = run_gaudi(code, PT_HPU_LOG_MOD_MASK="80", PT_HPU_LOG_TYPE_MASK="F")
    lines = done.stderr.splitlines()
    assert lines.count("habana_mp.gaudi: CPU fallback tril : self=HABANAHalfType") == 1, done.stderr
    assert "habana_mp.gaudi: CPU fallback exp : self=HABANAFloatType" in lines
    done = run_gaudi(code, PT_HPU_LOG_MOD_MASK="0x80", PT_HPU_LOG_TYPE_MASK="0x1")
    assert (done.returncode, "fallback" in done.stderr) == (0, False)
    done = run_gaudi(code, PT_HPU_LOG_MOD_MASK="all")
    assert "PT_HPU_LOG_MOD_MASK must be a mask in hexadecimal, such as 0x80; got 'all'" in done.stderr


STATE = """
import importlib.util, multiprocessing.spawn, os, sys
import torch.distributed
from torch.utils.data import DataLoader

def state():
    classes = {(owner, name): value for owner in (torch, torch.cuda, torch.fft, torch.Tensor, torch.nn.Module)
               for name, value in vars(owner).items()}
    codes = [one.__code__ for one in (
        torch.load, torch.autocast.__init__, torch.autocast.__enter__, DataLoader.__init__,
        torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel.__init__,
        importlib.util.find_spec)]
    return classes, codes, list(sys.meta_path), multiprocessing.spawn.get_preparation_data, list(
        torch.serialization._package_registry), os.environ.get("HABANA_MP_GAUDI")

def check_as_before():
    after = state()
    assert {key for key in before[0] if before[0][key] is not after[0].get(key)} == set()
    assert set(after[0]) == set(before[0]) and after[1:] == before[1:]
    try:
        torch.ones(1, device="hpu")
    except (RuntimeError, ImportError):
        print("refused")

before = state()
"""


def test_torch_is_as_it_was_when_it_is_switched_off() -> None:
    code = """
        import habana_mp.gaudi
        import habana_frameworks.torch.gpu_migration
        assert state()[1:] != before[1:]
        habana_mp.gaudi.switch_off()
        check_as_before()
        """
    for variable in ({}, {"HABANA_MP_GAUDI": "cpu"}):
        assert gaudi(textwrap.dedent(code), on="import torch\n" + STATE, **variable) == ["refused"], variable
