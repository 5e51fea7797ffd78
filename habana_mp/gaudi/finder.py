"""Finds the stand-in's modules, for the script's own code."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from habana_mp.common.specs import spec_in
from habana_mp.gaudi.callers import a_library_asks, code_for_hpus_asks

FOLDER = Path(__file__).parent / "frameworks"
#: The top-level packages in the folder.
ROOTS = ("habana_frameworks", "habana_dataloader", "habana_dl_app", "hmp")

NO_MEDIA = (
    "it decodes images and video on Gaudi's own hardware; use torch.utils.data.DataLoader with a dataset of torchvision"
)

NO_FP8 = "fp8 is for Gaudi's own kernels; use bfloat16, by hmp.convert or torch.autocast"

#: The beginnings of the names of modules that make sense only on Gaudi, with the reason and what to use instead.
_WITHOUT_MEANING = {
    "habana_frameworks.mediapipe": NO_MEDIA,
    "habana_frameworks.medialoaders": NO_MEDIA,
    "habana_dataloader.aeon_": NO_MEDIA,
    "habana_dataloader.habana_dali": NO_MEDIA,
    "habana_dataloader.habana_dl_app": NO_MEDIA,
    "habana_dl_app": NO_MEDIA,
    "habana_frameworks.tensorflow": "it is for TensorFlow",
    "habana_frameworks.torch.hpex.experimental": NO_FP8,
    "habana_frameworks.torch.core.quantizer": NO_FP8,
    "habana_frameworks.torch.core.weight_sharing": (
        "graphs of Gaudi share weights by it; use torch's parameters as they are"
    ),
    "habana_frameworks.torch.internal": (
        "it has the settings of Gaudi's bridge; use the environment variables that docs/gaudi.md names"
    ),
    "habana_frameworks.torch.hpex.kernels.fbgemm": (
        "its kernels are for Gaudi; use torch.nn.EmbeddingBag, or the package fbgemm_gpu on CUDA"
    ),
}


_TORCH = "habana_frameworks.torch"

#: Other names of modules.
_SAME = {
    "hmp": "habana_mp",  # for `from hmp import hmp`, as scripts for release 0.15 write it
    f"{_TORCH}.core.hccl": f"{_TORCH}.distributed.hccl",
    f"{_TORCH}.core.hpu": f"{_TORCH}.hpu",
    f"{_TORCH}.core.quantization": f"{_TORCH}.utils",
    f"{_TORCH}.core.step_closure": f"{_TORCH}.utils",
    f"{_TORCH}.dynamo.compile_backend.experimental": f"{_TORCH}.utils",
    f"{_TORCH}.hpex.hmp": "habana_mp.hmp",
    f"{_TORCH}.utils.distributed_utils": f"{_TORCH}.distributed.hccl",
    **{
        f"{_TORCH}.utils.{name}": f"{_TORCH}.utils"
        for name in ("debug", "experimental", "internal", "lib_utils", "library_loader")
    },
}


def _absent(name: str, why: str) -> str:
    return f"`{name}` is not in habana_mp's stand-in for Gaudi: {why}"


def refused(name: str, why: str) -> type:
    """Returns a class of this name that raises NotImplementedError when it is called."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(_absent(name, why))

    return type(name.rpartition(".")[2], (), {"__init__": refuse})


class _Loader(importlib.abc.Loader):
    """Makes a module by a function."""

    def __init__(self, fill: Callable[[types.ModuleType], None]) -> None:
        self._fill = fill

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        self._fill(module)


def _refusing(module: types.ModuleType, why: str) -> None:
    """Makes every name of the module a class that raises when it is called."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = refused(f"{module.__name__}.{name}", why)
        setattr(module, name, made)
        return made

    vars(module)["__getattr__"] = find


def _same(module: types.ModuleType, other: str) -> None:
    sys.modules[module.__name__] = importlib.import_module(other)


class Finder(importlib.abc.MetaPathFinder):
    """Comes before Python's own finders. It finds nothing for an installed library."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root = fullname.partition(".")[0]
        is_of_another_package = bool(path)  # the stand-in's packages have no path
        if root not in ROOTS or is_of_another_package or a_library_asks():
            return None
        if fullname == root and self.installed(root) is not None:
            if root == "habana_frameworks":
                refuse_to_shadow(self)
            return None  # a module of the script or of a library with the same name
        for name, why in _WITHOUT_MEANING.items():
            if fullname.startswith(name):
                if code_for_hpus_asks():  # such a library imports what few of its users need
                    return importlib.machinery.ModuleSpec(
                        fullname, _Loader(partial(_refusing, why=why)), is_package=True
                    )
                raise ModuleNotFoundError(_absent(fullname, why), name=fullname)
        if fullname in _SAME:
            return importlib.machinery.ModuleSpec(fullname, _Loader(partial(_same, other=_SAME[fullname])))
        file = FOLDER.joinpath(*fullname.split("."))
        if (file / "__init__.py").exists():
            spec = importlib.util.spec_from_file_location(fullname, file / "__init__.py")
            assert spec is not None
            # Without a path, only this finder finds its modules, and so only the script's own code can import them.
            spec.submodule_search_locations = []
            return spec
        if file.with_suffix(".py").exists():
            return importlib.util.spec_from_file_location(fullname, file.with_suffix(".py"))
        if root != "habana_frameworks":
            return None
        raise ModuleNotFoundError(_absent(fullname, "docs/gaudi.md says what is in it"), name=fullname)

    def installed(self, root: str) -> importlib.machinery.ModuleSpec | None:
        """Returns what the other finders find under this name, or None."""
        return spec_in(root, None, without=self)


def refuse_to_shadow(finder: Finder) -> None:
    """Raises if the real package is installed.

    Raises:
        ImportError: habana_frameworks is installed.
    """
    spec = finder.installed("habana_frameworks")
    if spec is not None:
        where = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise ImportError(
            f"habana_frameworks is installed ({where}), and habana_mp's stand-in never takes its place; run the "
            "script without `--gaudi`, `import habana_mp.gaudi` and HABANA_MP_GAUDI"
        )
