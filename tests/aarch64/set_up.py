"""Makes a Python for aarch64 that an emulator runs, with the package in it, for ``make test-aarch64``.

python tests/aarch64/set_up.py python FOLDER          # FOLDER/python/bin/python, for the system in FOLDER/root
python tests/aarch64/set_up.py core FOLDER            # builds the core by a cross compiler, and installs the package
python tests/aarch64/set_up.py wheel FOLDER           # builds a wheel into FOLDER
python tests/aarch64/set_up.py install FOLDER WHEEL   # FOLDER/installed/bin/python: the wheel, and what python has
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
#: QEMU_CPU names the processor. What starts a compiler gets the one that compiles for it.
PYTHON = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
PATH="$here:$PATH" CPATH="$here/../../root/usr/include:$here/../../root/usr/include/python3.11"
export PATH CPATH
exec qemu-aarch64-static -L "$here/../../root" -0 "$here/python" "$here/../../root/usr/bin/python3.11" "$@"
"""
#: "native" would be this machine's own processor.
COMPILER = """\
#!/bin/bash
exec aarch64-linux-gnu-{} "${{@/-march=native/-march=armv8.2-a}}"
"""
CORES = 2
#: torch reads both files when it is imported, and ends the process without them: the processor is a Neoverse N1.
IDENTIFICATION = "0x00000000413fd0c1\n"
FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
CORE = """\
processor\t: {}
Features\t: {}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


PACKAGES = "lib/python3.11/site-packages"


def make_python(folder: Path, name: str = "python") -> None:
    root, python = folder / "root", folder / name
    (python / "bin").mkdir(parents=True, exist_ok=True)
    (python / "bin" / "python").write_text(PYTHON)
    (python / "bin" / "python").chmod(0o755)
    for compiler in ("gcc", "g++"):
        (python / "bin" / compiler).write_text(COMPILER.format(compiler))
        (python / "bin" / compiler).chmod(0o755)
    (python / "pyvenv.cfg").write_text(f"home = {root / 'usr' / 'bin'}\ninclude-system-site-packages = false\n")
    for i in range(CORES):
        registers = root / f"sys/devices/system/cpu/cpu{i}/regs/identification"
        registers.mkdir(parents=True, exist_ok=True)
        (registers / "midr_el1").write_text(IDENTIFICATION)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text("\n".join(CORE.format(i, FEATURES) for i in range(CORES)))


def settings(folder: Path, core: str) -> dict[str, str]:
    """Sets the environment of a build, and returns its settings."""
    os.environ["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
    os.environ["SETUPTOOLS_EXT_SUFFIX"] = ".cpython-311-aarch64-linux-gnu.so"
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    toolchain = HERE / "toolchain.cmake"
    return {"build-dir": str(folder / core), "cmake.define.CMAKE_TOOLCHAIN_FILE": str(toolchain)}


def install(folder: Path) -> None:
    """Builds and installs the package so that its Python files are used where they lie."""
    from scikit_build_core.build import build_editable

    name = build_editable(str(folder), {**settings(folder, "core"), "cmake.define.HABANA_MP_DEV": "ON"})
    with zipfile.ZipFile(folder / name) as wheel:
        wheel.extractall(folder / "python" / PACKAGES)


def make_wheel(folder: Path) -> None:
    from scikit_build_core.build import build_wheel

    build_wheel(str(folder), settings(folder, "core-of-wheel"))


def install_wheel(folder: Path, name: str) -> None:
    make_python(folder, "installed")
    packages = folder / "installed" / PACKAGES
    shutil.rmtree(packages, ignore_errors=True)
    with zipfile.ZipFile(name) as wheel:
        wheel.extractall(packages)
    (packages / "others.pth").write_text(f"{folder / 'python' / PACKAGES}\n")


if __name__ == "__main__":
    call = {"python": make_python, "core": install, "wheel": make_wheel, "install": install_wheel}[sys.argv[1]]
    call(Path(sys.argv[2]).resolve(), *sys.argv[3:])
