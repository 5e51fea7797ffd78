"""Checks the wheel and the sdist in a folder, for ``make wheel`` and its siblings; needs Python and binutils only.

python tests/wheels/check.py contents dist          # size, files, needed libraries, paths of this machine
python tests/wheels/check.py wheel dist             # the same of a wheel alone
python tests/wheels/check.py install dist TORCH     # in an empty environment without a compiler, the smoke test
python tests/wheels/check.py again dist             # another build in another folder has the same bytes
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).parent / "smoke.py"

#: A wheel may be this large, in bytes.
LIMIT = 3_000_000
#: The libraries of the system that a wheel may use. manylinux allows a few more, such as those of X11.
OF_THE_SYSTEM = re.compile(r"(libstdc\+\+|libgcc_s|libm|libc|libpthread|libdl|ld-linux-[\w-]+)\.so\.\d+")
#: Older releases of glibc have these under other versions, or headers use them only where they exist.
MOVED = re.compile(r"(dl\w+|pthread_\w+|[fl]?stat|__libc_single_threaded|__libc_start_main)$")
#: Files besides code that must be in the wheel.
NEEDED = {
    *("habana_mp/py.typed", "habana_mp/_core.pyi", "habana_mp/lists/presets/recommended.json"),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "habana_mp" / "reporting" / "page").iterdir() if path.is_file()),
}
#: The sdist holds these in its top folder.
IN_SDIST = {
    "CHANGELOG.md", "CITATION.cff", "CMakeLists.txt", "PKG-INFO", "README.md", "SECURITY.md", "habana_mp", "lists",
    "pyproject.toml", "src",
}  # fmt: skip


def needed_libraries(module: Path) -> list[str]:
    """Returns the shared libraries that a module names, and the folders in which it looks for them."""
    output = subprocess.run(["readelf", "-d", module], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\((?:NEEDED|RPATH|RUNPATH)\).*\[(.*)\]", output)


def unexpected_libraries(module: Path) -> list[str]:
    """Returns those of them that not every Linux has."""
    return [name for name in needed_libraries(module) if not OF_THE_SYSTEM.fullmatch(name)]


def missing_in_manylinux(module: Path, newest: int = 28) -> list[str]:
    """Returns the functions that this release of glibc lacks: 2.28 is that of manylinux_2_28, where a build fails."""
    output = subprocess.run(["readelf", "-W", "--dyn-syms", module], check=True, capture_output=True, text=True).stdout
    versioned = re.findall(r"UND (\w+)@GLIBC_2\.(\d+)", output)
    return sorted(
        f"{name} of glibc 2.{minor}" for name, minor in versioned if int(minor) > newest and not MOVED.match(name)
    )


def paths_inside(data: bytes) -> list[str]:
    """Returns the absolute paths in a module. With one, its bytes depend on the folder in which it was built."""
    found = re.findall(rb"/(?:tmp|root|home|work|project|opt|usr/include)/[\w./+-]+", data)
    return sorted({path.decode() for path in found})


def version() -> str:
    text = (ROOT / "habana_mp" / "common" / "version.py").read_text("utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    assert found is not None
    return found[1]


def one_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} has {len(found)} files {pattern}, not one: run `make wheel`")
    return found[0]


def faults_of_wheel(wheel: Path) -> Iterable[str]:
    if not wheel.name.startswith(f"habana_mp-{version()}-"):
        yield f"the version is not {version()}"
    if wheel.stat().st_size > LIMIT:
        yield f"it has {wheel.stat().st_size:,} bytes, more than {LIMIT:,}"
    named = re.search(r"-manylinux_2_(\d+)_", wheel.name)
    newest = int(named[1]) if named else 28
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = set(archive.namelist())
        yield from (f"{name} is missing" for name in sorted(NEEDED - names))
        yield from (f"{name} does not belong there" for name in sorted(names) if not belongs_in_wheel(name))
        for name in (name for name in names if ".so" in Path(name).name):
            module = Path(archive.extract(name, folder))
            yield from (f"{name} needs {library}" for library in unexpected_libraries(module))
            yield from (f"{name} needs {function}" for function in missing_in_manylinux(module, newest))
            yield from (f"{name} has the path {path}" for path in paths_inside(module.read_bytes()))
            print(f"{name}: {module.stat().st_size:,} bytes, needs {', '.join(needed_libraries(module))}")


def belongs_in_wheel(name: str) -> bool:
    return name.startswith(("habana_mp/", f"habana_mp-{version()}.dist-info/")) and "__pycache__" not in name


def faults_of_sdist(sdist: Path) -> Iterable[str]:
    with tarfile.open(sdist) as archive:
        paths = [Path(name) for name in archive.getnames()]
    top = {path.parts[1] for path in paths if len(path.parts) > 1}
    yield from (f"{name} does not belong there" for name in sorted(top - IN_SDIST))
    yield from (f"{name} is missing" for name in sorted(IN_SDIST - top))
    yield from (f"{path} does not belong there" for path in paths if path.suffix in {".so", ".pyc", ".o"})


def check_contents(folder: Path, *, of_sdist: bool) -> bool:
    wheel = one_file(folder, "*.whl")
    faults = [f"{wheel.name}: {fault}" for fault in faults_of_wheel(wheel)]
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
    if of_sdist:
        sdist = one_file(folder, "*.tar.gz")
        faults += [f"{sdist.name}: {fault}" for fault in faults_of_sdist(sdist)]
        print(f"{sdist.name}: {sdist.stat().st_size:,} bytes")
    print("\n".join(faults) or "contents are as they should be")
    return not faults


def check_install(folder: Path, torch: str) -> bool:
    """Installs the wheel beside a torch in an environment that has nothing else, and runs the smoke test there."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        environment = Path(name)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        # PATH has no folder with a compiler. Other variables, such as LD_LIBRARY_PATH, are not inherited.
        alone = {"PATH": str(environment / "bin"), "HOME": name, "LANG": "C.UTF-8"}
        alone |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        assert shutil.which("g++", path=alone["PATH"]) is None
        pip = [environment / "bin" / "pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*pip, torch, one_file(folder, "*.whl")], check=True, env=alone, cwd=environment)
        done = subprocess.run([environment / "bin" / "python", SMOKE], check=False, env=alone, cwd=environment)
    return done.returncode == 0


def files_of_the_project() -> list[str]:
    """Returns the files that git knows or would add."""
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    return [name for name in output.stdout.splitlines() if (ROOT / name).is_file()]


def check_again(folder: Path) -> bool:
    """Builds both again in a folder with another name, with other rights, time zone and hashes; compares the bytes."""
    with tempfile.TemporaryDirectory(prefix="another-folder-with-a-longer-name-") as name:
        copy = Path(name, "project")
        for path in files_of_the_project():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, copy / path)
        # A cache of the compiler would answer with what the first build wrote.
        otherwise = {"TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "1", "CCACHE_DISABLE": "1", "TMPDIR": name}
        build = [sys.executable, "-m", "build", "--outdir", Path(name, "dist"), copy]
        subprocess.run(build, check=True, env=os.environ | otherwise, umask=0o077, stdout=subprocess.DEVNULL)
        same = True
        for pattern in ("*.whl", "*.tar.gz"):
            first, second = one_file(folder, pattern), one_file(Path(name, "dist"), pattern)
            equal = first.name == second.name and first.read_bytes() == second.read_bytes()
            print(f"{first.name}: {'the same bytes' if equal else 'other bytes'}")
            same = same and equal
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("check", choices=["contents", "wheel", "install", "again"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("torch", nargs="?", default="torch", help="what pip installs beside the wheel")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.check in ("contents", "wheel"):
        passed = check_contents(folder, of_sdist=options.check == "contents")
    elif options.check == "install":
        passed = check_install(folder, options.torch)
    else:
        passed = check_again(folder)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
