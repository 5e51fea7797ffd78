"""Builds a core with the given options, and a copy of the package around it. The installed package is not touched.

python tests/helpers/own_core.py FOLDER [-DOPTION=VALUE ...]

The build is in FOLDER, the copy in FOLDER/site. A Python process with this folder in PYTHONPATH imports the copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Every Python process with the copy in its PYTHONPATH imports this. It precedes the importer of an editable install,
#: and the checkout in the working directory.
IMPORTER = """\
import importlib.machinery
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)


class OurPackage:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, [HERE]) if name == "habana_mp" else None


sys.meta_path[:] = [OurPackage, *(one for one in sys.meta_path if "editable" not in type(one).__module__)]
"""


def tool(name: str) -> str:
    """Returns the path of a program: in this Python's environment, else in the system."""
    own = Path(sys.executable).parent / name
    path = str(own) if own.exists() else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is neither beside {sys.executable} nor in PATH")
    return path


def configure(folder: Path, *options: str, source: Path = ROOT) -> None:
    """Prepares the build; raises CalledProcessError. The tools print to build.log."""
    folder.mkdir(parents=True, exist_ok=True)
    pybind11 = subprocess.check_output([sys.executable, "-m", "pybind11", "--cmakedir"], text=True).strip()
    command = [tool("cmake"), "-G", "Ninja", "-S", source, "-B", folder, f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11}", *options]
    with open(folder / "build.log", "w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def build(folder: Path) -> None:
    """Compiles and links; raises CalledProcessError. The tools print to build.log."""
    jobs = os.environ.get("JOBS") or str(os.cpu_count())
    with open(folder / "build.log", "a") as log:
        subprocess.run([tool("cmake"), "--build", folder, "-j", jobs], stdout=log, stderr=log, check=True)


def make_site(folder: Path, importer: str = IMPORTER) -> Path:
    """Copies the package, with the core that was built, into FOLDER/site."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "_core*.so")
    shutil.copytree(ROOT / "habana_mp", site / "habana_mp", ignore=left_out)
    shutil.copytree(ROOT / "lists", site / "habana_mp" / "lists")
    for core in folder.glob("_core*.so"):
        shutil.copy2(core, site / "habana_mp")
    (site / "sitecustomize.py").write_text(importer)
    return site


def environment(site: Path) -> dict[str, str]:
    """Returns the environment variables of processes that are to import the copy."""
    return {**os.environ, "PYTHONPATH": str(site), "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def check_site(site: Path) -> None:
    """Raises RuntimeError if such a process would import another package or another core."""
    code = "import habana_mp\nfrom habana_mp import _core\nprint(habana_mp.__file__, _core.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(site), capture_output=True, text=True, check=True
    )
    expected = [str(site / "habana_mp" / "__init__.py"), *map(str, (site / "habana_mp").glob("_core*.so"))]
    if done.stdout.split() != expected:
        raise RuntimeError(f"imported {done.stdout.split()} instead of {expected}")


def main() -> int:
    folder, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    try:
        configure(folder, *options)
        build(folder)
    except subprocess.CalledProcessError:
        print("\n".join((folder / "build.log").read_text().splitlines()[-20:]))
        return 1
    make_site(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
