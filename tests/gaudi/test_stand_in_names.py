"""Each name that Gaudi scripts use, in the shapes in which they call it."""

from __future__ import annotations

from pathlib import Path

from helpers.gaudi import gaudi

NAMES = [line.split() for line in (Path(__file__).parent / "names.txt").read_text().splitlines()[1:]]


def test_every_name_works_or_refuses_by_its_name() -> None:
    """One process for all names; what each does is tested below."""
    gaudi(
        f"""
        import importlib
        for module, *rest in {NAMES!r}:
            refuses = rest[1:] == ["refuses"]
            assert len(rest) < 2 or refuses
            try:
                found = importlib.import_module(module)
                for name in rest[:1]:
                    found = getattr(found, name)
                    if refuses:
                        found()
            except (ImportError, NotImplementedError) as error:
                named = rest[0] if isinstance(error, NotImplementedError) else error.name
                assert refuses and (named == rest[0] or module.startswith(named)), error
                assert f"`{{named}}`" in str(error) and "stand-in" in str(error), error
                assert any(word in str(error) for word in ("use ", "Write ")), error
            else:
                assert not refuses, (module, rest)
        """
    )


def test_core_graphs_of_modules_and_utilities() -> None:
    gaudi(
        """
        import habana_frameworks.torch.core as htcore
        import habana_frameworks.torch.core.hccl
        import habana_frameworks.torch.core.hpu
        import habana_frameworks.torch.hpu
        import habana_frameworks.torch as ht
        assert htcore is ht.core
        for _ in range(2):
            assert htcore.mark_step() is None
        htcore.mark_step(sync=True)
        htcore.hpu_initialize(), htcore.hpu_set_env()
        # Scripts permute the filters of convolutions themselves where the pass is off.
        assert htcore.is_enabled_weight_permute_pass() is True
        assert htcore.hpu is habana_frameworks.torch.hpu is torch.hpu is habana_frameworks.torch.core.hpu
        assert htcore.hccl.initialize_distributed_hpu
        assert htcore.hpu.default_stream() is htcore.hpu.current_stream()
        # Wrapped modules are called as they are.
        import habana_frameworks.torch.hpu.graphs as htgraphs
        model = torch.nn.Linear(2, 2).to("hpu")
        assert ht.hpu.wrap_in_hpu_graph(model) is model
        assert htgraphs.wrap_in_hpu_graph(model, asynchronous=True) is model
        assert htcore.hpu.ModuleCacher(max_graphs=5)(model=model, inplace=True) is model
        assert ht.hpu.ModuleCacher()(model, allow_unused_input=True, verbose=False) is model
        assert ht.hpu.make_graphed_callables(model, (torch.ones(2, 2),)) is model
        # utilities
        from habana_frameworks.torch.utils.library_loader import load_habana_module
        from habana_frameworks.torch.utils.library_loader import is_habana_available, is_habana_avaialble
        import habana_frameworks.torch.utils.debug as htdebug
        import habana_frameworks.torch.utils.experimental as htexp
        load_habana_module()
        assert is_habana_available() and is_habana_avaialble()
        assert htdebug._is_enabled_synapse_layout_handling() is True
        kinds = htexp.synDeviceType
        assert htexp._get_device_type() not in (kinds.synDeviceGaudi, kinds.synDeviceGaudi2)
        assert isinstance(htexp._get_device_type(), kinds)
        """
    )


def test_mixed_precision_with_the_four_keyword_arguments(tmp_path: Path) -> None:
    (tmp_path / "ops_bf16.txt").write_text("linear\n")
    (tmp_path / "ops_fp32.txt").write_text("softmax\n")
    gaudi(
        """
        import os, tempfile, warnings
        from habana_frameworks.torch.hpex import hmp
        import habana_frameworks.torch.hpex.hmp as by_path
        from hmp import hmp as of_015
        assert hmp is by_path is of_015
        x = torch.ones(2, 2, device="hpu")
        def kinds():
            return torch.nn.functional.linear(x, x).dtype, torch.softmax(x, -1).dtype, torch.mm(x, x).dtype
        bf16, fp32 = torch.bfloat16, torch.float32
        default = (bf16, fp32, bf16)
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=0)
        assert kinds() == default
        hmp.convert(opt_level="O1", bf16_file_path=None, fp32_file_path=None, isVerbose=False)
        assert kinds() == default
        hmp.convert(opt_level="O1", bf16_file_path="ops_bf16.txt", fp32_file_path="ops_fp32.txt", isVerbose=False)
        assert kinds() == (bf16, fp32, fp32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hmp.convert(opt_level="O2", bf16_file_path="ops_bf16.txt", fp32_file_path="ops_fp32.txt", isVerbose=None)
        assert kinds() == default
        hmp.convert("O2", None, None, 0)
        assert kinds() == default
        with tempfile.NamedTemporaryFile("w") as lower, tempfile.NamedTemporaryFile("w") as full:
            lower.write("mm\\n"), lower.flush(), full.write("softmax\\n"), full.flush()
            hmp.convert(opt_level="O1", bf16_file_path=lower.name, fp32_file_path=full.name, isVerbose=False)
        assert not os.path.exists(lower.name) and kinds() == (fp32, fp32, bf16)
        """,
        cwd=tmp_path,
    )


def test_disable_casts_around_steps_clipping_and_as_a_factory() -> None:
    gaudi(
        """
        import contextlib
        from habana_frameworks.torch.hpex import hmp
        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
        model = torch.nn.Linear(4, 4).to("hpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 4, device="hpu")
        def train(precision=contextlib.nullcontext):
            model(x).float().sum().backward()
            with precision():
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                return (x @ x.t()).dtype
        assert train() is torch.bfloat16
        assert train(hmp.disable_casts) is torch.float32  # uncalled: a factory of contexts
        assert train(precision=hmp.disable_casts) is torch.float32
        with hmp.disable_casts():
            assert model(x).dtype is torch.float32
        assert model(x).dtype is torch.bfloat16
        """
    )


def test_state_of_the_device() -> None:
    gaudi(
        """
        import habana_frameworks.torch.hpu as hthpu
        import habana_frameworks.torch.hpu.random
        import habana_frameworks.torch.hpu.memory as memory
        import unittest.mock
        assert hthpu.is_available() and torch.hpu.is_available() and hasattr(torch, "hpu")
        assert hthpu.device_count() == 1 and hthpu.current_device() == 0
        hthpu.init(), hthpu.set_device(0), hthpu.set_device("hpu:0"), hthpu.synchronize(), torch.hpu.synchronize("hpu")
        assert hthpu.is_initialized() and hthpu.is_bf16_supported() and hthpu.get_device_name().startswith("cpu")
        hthpu.disable_dynamic_shape(), hthpu.enable_dynamic_shape()
        # random
        hthpu.random.manual_seed(3)
        state = hthpu.random.get_rng_state()
        first = torch.randn(3, device="hpu")
        hthpu.random.set_rng_state(state)
        assert torch.equal(first, torch.randn(3, device="hpu"))
        hthpu.random.set_rng_state_all(hthpu.random.get_rng_state_all())
        hthpu.random.manual_seed_all(3)
        assert torch.equal(first, torch.randn(3, device="hpu")) and hthpu.random.initial_seed() == 3
        torch.hpu.manual_seed(3)
        assert torch.equal(first, torch.randn(3))
        torch.hpu.seed()
        # memory
        assert 0 < memory.memory_allocated() <= memory.max_memory_allocated()
        before = torch.hpu.max_memory_allocated()
        large = torch.ones(1 << 26, device="hpu")
        assert torch.hpu.max_memory_allocated() - before > 1 << 27
        del large
        with unittest.mock.patch("pathlib.Path.write_text", side_effect=PermissionError):  # as in a sandbox
            torch.hpu.reset_peak_memory_stats()
        torch.hpu.reset_peak_memory_stats()
        assert torch.hpu.memory.max_memory_allocated() < before + (1 << 27)
        assert set(torch.hpu.memory_stats()) == {"Limit", "InUse", "MaxInUse"} and torch.hpu.memory_summary()
        free, total = torch.hpu.mem_get_info()
        assert 0 < free < total
        torch.hpu.empty_cache()
        """
    )


def test_streams_and_events() -> None:
    gaudi(
        """
        import time
        import habana_frameworks.torch.hpu as hthpu
        stream, other = hthpu.Stream(), hthpu.Stream(device="hpu", priority=0)
        assert isinstance(stream, hthpu.Stream) and not isinstance(3, hthpu.Stream)
        with hthpu.stream(stream):
            assert hthpu.current_stream() is stream
            with torch.hpu.stream(other):
                assert hthpu.current_stream() is other
            x = torch.ones(2, device="hpu")
        assert hthpu.current_stream() is hthpu.default_stream()
        stream.wait_stream(hthpu.default_stream()), stream.synchronize()
        begin, end = hthpu.Event(enable_timing=True), hthpu.Event(enable_timing=True)
        begin.record()
        time.sleep(0.01)
        end.record(), end.synchronize(), stream.wait_event(end)
        assert end.query() and 9 < begin.elapsed_time(end) < 5000
        assert stream.record_event().query()
        hthpu.set_stream(stream)
        assert hthpu.current_stream() is stream
        """
    )


def test_distributed_hpu_tells_the_processes() -> None:
    code = """
        from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu
        import habana_frameworks.torch.distributed.hccl
        print(initialize_distributed_hpu())
        """
    assert gaudi(code) == ["(1, -1, -1)"]
    assert gaudi(code, WORLD_SIZE="4", RANK="3", LOCAL_RANK="1") == ["(4, 3, 1)"]
    by_mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert gaudi(code, **by_mpi) == ["(2, 1, 0)"]


def test_hccl_is_the_backend_of_the_real_device(tmp_path: Path) -> None:
    gaudi(
        """
        import torch.distributed as dist
        import habana_frameworks.torch.core.hccl
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group(backend="hccl", init_method="file://./store", rank=0, world_size=1)
        assert dist.get_backend() == "gloo"
        group = dist.new_group([0], backend="hccl")
        x = torch.ones(2, device="hpu")
        dist.all_reduce(x, group=group), dist.barrier()
        for options in ({}, {"device_ids": ["hpu:0"], "output_device": torch.device("hpu")}, {"device_ids": None}):
            model = DDP(torch.nn.Linear(2, 2).to("hpu"), bucket_cap_mb=100, broadcast_buffers=False, **options)
            model(x).sum().backward()
        dist.destroy_process_group()
        dist.init_process_group("cpu:gloo,hpu:hccl", init_method="file://./other", rank=0, world_size=1)
        dist.all_reduce(x)
        """,
        cwd=tmp_path,
        GLOO_SOCKET_IFNAME="lo",
    )


def test_kernels() -> None:
    gaudi(
        """
        import pytest
        from habana_frameworks.torch.hpex.kernels import CustomNms, EmbeddingBag, EmbeddingBagPreProc
        bag, prepare = EmbeddingBag(10, 3).to("hpu"), EmbeddingBagPreProc()
        indices, offsets = prepare(torch.tensor([1, 2, 4, 1]), torch.tensor([0, 3], dtype=torch.int32))
        got = bag(indices, offsets)
        assert torch.allclose(got, torch.stack([bag.weight[[1, 2, 4]].sum(0), bag.weight[1]]))
        got.sum().backward()
        assert bag.weight.grad[1].tolist() == [2.0] * 3
        for wrong in ((torch.ones(2, 2, dtype=torch.long), torch.tensor([0])), (torch.tensor([1]), torch.tensor([1]))):
            with pytest.raises(ValueError):
                prepare(*wrong)
        boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [1, 1, 3, 3]], device="hpu")
        scores = torch.tensor([0.8, 0.9, 0.5, 0.95], device="hpu")
        nms = CustomNms()
        assert nms(boxes, scores, 0.5).tolist() == nms.nms(boxes, scores, 0.5).tolist() == [3, 1, 2]
        assert nms(boxes, scores, 0.95).tolist() == [3, 1, 0, 2]
        classes = torch.tensor([0, 1, 0, 0])
        assert nms.batched_nms(boxes, scores, classes, 0.5).tolist() == [3, 1, 0, 2]
        assert nms.batched_nms(boxes[:0], scores[:0], classes[:0], 0.5).tolist() == []
        assert nms(boxes[:0], scores[:0], 0.5).tolist() == []
        """
    )


def test_a_training_step_is_captured_and_trains_as_the_plain_one_does() -> None:
    gaudi(
        """
        import habana_frameworks.torch as ht, pytest
        def made():
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1).to("hpu")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for parameter in model.parameters():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return model, optimizer
        def step(model, optimizer, x, y):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
        (plain, plain_optimizer), (model, optimizer) = made(), made()
        x, y = torch.zeros(8, 4, device="hpu"), torch.zeros(8, 1, device="hpu")
        g = ht.hpu.HPUGraph()
        with ht.hpu.graph(g):
            loss = step(model, optimizer, x, y)
        assert torch.equal(plain.weight, model.weight)  # captured, not taken
        for _ in range(5):
            new_x, new_y = torch.randn(8, 4), torch.randn(8, 1)
            expected = step(plain, plain_optimizer, new_x, new_y)
            x.copy_(new_x), y.copy_(new_y)
            g.replay()
            assert torch.equal(plain.weight, model.weight) and torch.equal(expected, loss)
        for wrong in (g.capture_end, ht.hpu.HPUGraph().replay):
            with pytest.raises(RuntimeError, match="call `capture_begin`"):
                wrong()
        """
    )
