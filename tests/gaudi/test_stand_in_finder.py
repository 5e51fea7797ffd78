"""Who finds the stand-in: the script and its children, and no library."""

from __future__ import annotations

from pathlib import Path

from helpers.gaudi import gaudi, run_gaudi

#: What a library asks, and its answers, one after the other.
LIBRARY = """
import importlib.util
from importlib.util import find_spec
def asked():
    try:
        import habana_frameworks.torch.core
        imported = True
    except ImportError:
        imported = False
    try:
        inner = find_spec("habana_frameworks.torch")
    except ModuleNotFoundError:
        inner = None
    import torch
    return importlib.util.find_spec("habana_frameworks"), inner, imported, hasattr(torch, "hpu")
"""


def a_library(folder: Path) -> Path:
    """One that is installed in this folder."""
    installed = folder / "site-packages"
    (installed / "some_library").mkdir(parents=True)
    (installed / "some_library" / "__init__.py").write_text(LIBRARY)
    return installed


def test_nothing_is_found_without_it() -> None:
    code = "import importlib.util, habana_mp; print(importlib.util.find_spec('habana_frameworks'))"
    assert gaudi(code, on="") == ["None"]
    assert (
        "No module named 'habana_frameworks'" in run_gaudi("import habana_frameworks", on="import habana_mp\n").stderr
    )


def test_a_library_that_asks_is_told_that_there_is_none(tmp_path: Path) -> None:
    code = """
        import importlib.util, some_library
        print(some_library.asked())
        assert importlib.util.find_spec("habana_frameworks").name == "habana_frameworks"
        import habana_frameworks.torch.core
        assert importlib.util.find_spec("habana_frameworks.torch").name == "habana_frameworks.torch"
        print(*[bool(one) for one in some_library.asked()])
        """
    lines = gaudi(code, PYTHONPATH=str(a_library(tmp_path)))
    # The second time it is imported already; an import statement finds it then, a question does not.
    assert lines == ["(None, None, False, False)", "False False True False"]


def test_libraries_answer_as_they_do_without_it() -> None:
    code = """
        import transformers.utils.import_utils as of_transformers, accelerate.utils.imports as of_accelerate
        import accelerate, torch
        from lightning_utilities.core.imports import module_available, package_available
        print(of_transformers.is_torch_hpu_available(), of_accelerate.is_hpu_available())
        print(of_transformers._is_package_available("habana_frameworks"), of_accelerate.is_habana_gaudi1())
        print(accelerate.PartialState().device)
        print(torch.gather is torch._C._VariableFunctions.gather)  # where there is an HPU, it is exchanged
        print(module_available("habana_frameworks"), package_available("habana_frameworks"))
        """
    without = gaudi(code, on="")
    assert (without[0], without[-1]) == ("False False", "False False")
    imported = "import habana_mp.gaudi\nimport habana_frameworks.torch.core, torch\nassert torch.hpu.is_available()\n"
    assert gaudi(code, on=imported) == without


def test_a_script_that_a_library_calls_still_finds_it(tmp_path: Path) -> None:
    installed = a_library(tmp_path)
    (installed / "some_library" / "__init__.py").write_text("def call(function):\n    return function()\n")
    code = """
        import some_library
        def function():
            import habana_frameworks.torch.core as htcore
            return htcore.mark_step()
        print(some_library.call(function))
        """
    assert gaudi(code, PYTHONPATH=str(installed)) == ["None"]


def test_the_real_package_is_never_shadowed(tmp_path: Path) -> None:
    (tmp_path / "habana_frameworks").mkdir()
    (tmp_path / "habana_frameworks" / "__init__.py").write_text("real = True\n")
    told = f"habana_frameworks is installed ({tmp_path}/habana_frameworks/__init__.py), and habana_mp's stand-in never"
    done = run_gaudi("", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stderr
    # It comes onto the path later on.
    late = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\ntry:\n    import habana_frameworks\n"
    done = run_gaudi(f"{late}except ImportError as error:\n    print(error)")
    assert told in done.stdout


def test_modules_of_the_script_with_such_names_stay_the_scripts(tmp_path: Path) -> None:
    for name in ("hmp", "habana_dl_app", "habana_dataloader"):
        (tmp_path / f"{name}.py").write_text("own = True\n")
        assert gaudi(f"import {name}; print({name}.own)", PYTHONPATH=str(tmp_path)) == ["True"]


def test_the_environment_variable_switches_it_on_where_the_package_is_imported() -> None:
    code = "import habana_frameworks.torch as ht; import habana_mp.gaudi as g; print(g.devices().real)"
    for value in ("cpu", "1"):
        assert gaudi(code, on="import habana_mp\n", HABANA_MP_GAUDI=value) == ["cpu"]
    for value in ("", "0"):
        assert run_gaudi(code, on="import habana_mp\n", HABANA_MP_GAUDI=value).returncode == 1


SPAWNS = """
import multiprocessing, torch
import habana_frameworks.torch.core as htcore
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.utils.library_loader import load_habana_module

def work(rank, queue):
    hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    x = torch.ones(2, 2, device="hpu")
    htcore.mark_step()
    queue.put((str(x.device), str(torch.mm(x, x).dtype)))

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(0, queue))
        process.start()
        print(method, *queue.get(timeout=100))
        process.join()
"""


def test_processes_that_the_script_starts_have_it_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert gaudi(code) == [f"{method} hpu:0 torch.bfloat16" for method in ("spawn", "fork")]


def test_switch_on_takes_a_device_that_is_here() -> None:
    code = """
        import os
        from habana_mp.gaudi import devices, prepare_children, switch_on
        switch_on("cpu"), switch_on(None), prepare_children("cpu")
        print(devices().real, os.environ["HABANA_MP_GAUDI"])
        torch.cuda.current_device = lambda: 1
        print(*[type(devices())(torch.device(one)).current_index() for one in ("cuda:0", "cuda:2", "cuda", "cpu")])
        for wrong in ("cuda:7", "tpu"):
            try:
                switch_on(wrong)
            except ValueError as error:
                print(error)
        """
    first, numbers, *errors = gaudi(code)
    assert (first, numbers) == ("cpu cpu", "0 2 1 0")
    assert errors[0] == "`device` must be one that is here: cpu; got 'cuda:7'"
    for error, name in zip(errors, ("cuda:7", "tpu"), strict=True):
        assert error.startswith("`device` must be ")
        assert name in error
    done = run_gaudi("", HABANA_MP_GAUDI="tpu")
    assert "ValueError: `device` must be " in done.stderr


def test_a_model_of_the_stand_in_is_unpickled_by_torch() -> None:
    gaudi(
        """
        import io, pickle
        from habana_frameworks.torch.hpex.kernels import EmbeddingBag
        saved = io.BytesIO()
        torch.save(EmbeddingBag(3, 2), saved)
        saved.seek(0)
        assert type(torch.load(saved, weights_only=False)) is EmbeddingBag
        assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
        assert pickle.loads(pickle.dumps(torch.fft.fftfreq)) is torch.fft.fftfreq
        """
    )


#: Code of a library that is for HPUs: it asks through another library, and imports media pipelines at once.
FOR_HPUS = """
import torch
from lightning_utilities.core.imports import package_available
assert package_available("habana_frameworks")
import habana_frameworks.torch.hpu as torch_hpu
from habana_frameworks.mediapipe import fn
from habana_frameworks.mediapipe.mediapipe import MediaPipe
from habana_frameworks.mediapipe.operators.cpu_nodes.cpu_nodes import media_function
class Pipe(MediaPipe):
    def __init__(self):
        super().__init__(device="hpu")
def device_of(tensor):
    return tensor.device.type, torch.hpu.is_available(), torch_hpu.device_count()
"""


def test_a_library_that_is_for_hpus_finds_it(tmp_path: Path) -> None:
    installed = a_library(tmp_path)
    places = (
        *("lightning_habana/__init__.py", "optimum/habana/__init__.py", "pytorch_lightning/accelerators/hpu.py"),
        *("lightning/pytorch/plugins/precision/hpu.py", "deepspeed/accelerator/real_accelerator.py"),
        "deepspeed/ops/op_builder/hpu/fused_adam.py",
    )
    for place in places:
        (installed / place).parent.mkdir(parents=True)
        (installed / place).write_text(FOR_HPUS)
    code = f"""
        import importlib.util, pytest, runpy
        import some_library
        assert some_library.asked()[0] is None
        for place in {places!r}:
            module = runpy.run_path({str(installed)!r} + "/" + place)
            assert module["device_of"](torch.ones(2)) == ("hpu", True, 1)
            for use in (module["Pipe"], module["fn"]):
                with pytest.raises(NotImplementedError, match="(?s)habana_frameworks.mediapipe.*DataLoader"):
                    use()
        """
    gaudi(code, PYTHONPATH=str(installed))


def test_lightnings_package_for_hpus_is_told_a_release(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "lightning_habana" / "utils"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "resources.py").write_text("def get_hpu_synapse_version():\n    return '0.0.0'\n")
    (folder / "imports.py").write_text(
        "from lightning_habana.utils.resources import get_hpu_synapse_version\nRELEASE = get_hpu_synapse_version()\n"
    )
    code = """
        from lightning_habana.utils import imports, resources
        assert imports.RELEASE == "1.23.0"
        habana_mp.gaudi.switch_off()
        assert resources.get_hpu_synapse_version() == "0.0.0"
        """
    gaudi(code, PYTHONPATH=str(folder.parents[1]))
