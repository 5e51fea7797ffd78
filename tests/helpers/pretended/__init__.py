"""A pretended accelerator for tests: torch's device type ``pretended``, computed by the CPU.

``load()`` registers it in this process, which it changes for good. So tests load it in processes of their own, before
the first backward. Its sources are in ``tests/accelerator/``; ``python -m helpers.pretended`` builds them.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sysconfig
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "tests" / "accelerator"
NAME = "pretended_accelerator"
COMPILER = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC"]


def built() -> Path:
    """Builds the extension unless it is built. Returns its file."""
    sources = sorted(SOURCES.glob("*.[ch]pp"))
    digest = hashlib.sha256(f"{COMPILER}{torch.__version__}{sysconfig.get_config_var('EXT_SUFFIX')}".encode())
    for one in sources:
        digest.update(one.read_bytes())
    folder = ROOT / "build" / "accelerator"
    library = folder / f"{NAME}-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile([one for one in sources if one.suffix == ".cpp"], library)
    return library


def _compile(sources: list[Path], library: Path) -> None:
    include, libraries = Path(torch.__file__).parent / "include", Path(torch.__file__).parent / "lib"
    folders = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    options = [word for one in folders for word in ("-isystem", str(one))]
    objects = [library.with_name(f"{library.stem}-{one.stem}.o") for one in sources]

    def compile_one(source: Path, made: Path) -> None:
        subprocess.run([*COMPILER, *options, "-c", str(source), "-o", str(made)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    unfinished = library.with_suffix(f".{os.getpid()}")
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(["g++", "-shared", *map(str, objects), *linked, "-o", str(unfinished)], check=True)
    unfinished.rename(library)
    for one in objects:
        one.unlink()


def load() -> Any:
    """Registers the device in this process, if it is not registered. Returns ``torch.pretended``."""
    if hasattr(torch, "pretended"):
        return torch.pretended
    spec = importlib.util.spec_from_file_location(NAME, built())
    assert spec is not None
    assert spec.loader is not None
    importlib.import_module("torch.distributed")  # the extension's types derive from its types

    from helpers.pretended import device, gloo

    torch.utils.rename_privateuse1_backend("pretended")
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    device.core = core
    torch._register_device_module("pretended", device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    gloo.register()
    # The engine's thread drops the graph after `backward` has returned. It aborts the process if Python has ended then.
    atexit.register(time.sleep, 0.1)
    return device
