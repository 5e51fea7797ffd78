"""Fuzzes list files: whatever bytes they hold, `hmp.convert` works or says what is wrong with them.

    python tests/fuzz/fuzz_lists.py [--seconds 300] [--engine atheris|hypothesis] [--replay FILE]

What may be raised is what `hmp.convert` documents: ValueError (ListError is one), OSError, and HmpWarning where
warnings are errors. After it torch must be as it was before the call, whether that was plain or converted; after a
conversion that worked, torch must compute, and `hmp.restore` must bring back every slot,
definition and code object. The first byte of an input chooses the circumstances, the rest is the file (or two, with a
line `%%` between them).

With atheris the Python files of the package are instrumented, so that the search is guided by what an input reaches;
without it hypothesis makes the files. Inputs that failed are kept in build/fuzz/. The exit status is 1 when any did.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import importlib.util
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from habana_mp import _core, hmp, ops
from habana_mp.patches import installation as installing
from habana_mp.patches.installation import installation
from habana_mp.patches.torch import composites
from habana_mp.policy import lists, presets, rules

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "build" / "fuzz"
HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
if HAS_ATHERIS:
    import atheris

SEPARATOR = b"\n%%\n"
PRESETS = (None, "hmp-default", "torch-cuda", "resnet50")
LARGEST = 1 << 16


# ---- what torch is ---------------------------------------------------------------------------------------------------

_WORD = ctypes.sizeof(ctypes.c_void_p)
# PyCFunctionObject: head, m_ml, m_self, m_module, m_weakreflist, vectorcall.
_FUNCTION_SLOT = object.__basicsize__ + 4 * _WORD
# PyMethodDescrObject: head, d_type, d_name, d_qualname, d_method, vectorcall.
_METHOD_DEFINITION = object.__basicsize__ + 3 * _WORD
_METHOD_SLOT = object.__basicsize__ + 4 * _WORD


class Torch:
    """Every place of torch that a conversion writes to, so that any change shows."""

    def __init__(self) -> None:
        self._words: list[ctypes.c_void_p] = []
        self._functions: list[types.FunctionType] = []
        seen: set[int] = set()
        namespaces = [space for _, space in ops.find.namespaces()]
        for owner in (*namespaces, torch._C.TensorBase, torch, torch._C):
            for name in dir(owner):
                with contextlib.suppress(AttributeError, RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._add(getattr(owner, name), seen)
        for owner in (F, torch, torch.Tensor):
            self._functions += [one for one in vars(owner).values() if isinstance(one, types.FunctionType)]
        self._types = [torch._C.TensorBase, torch.Tensor, torch.nn.Parameter]
        self._keep = [getattr(space, name, None) for space in namespaces for name in dir(space)]

    def _add(self, value: Any, seen: set[int]) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, types.MethodDescriptorType):
            definition = ctypes.c_void_p.from_address(id(value) + _METHOD_DEFINITION).value
            assert definition is not None
            self._words.append(ctypes.c_void_p.from_address(id(value) + _METHOD_SLOT))
            self._words.append(ctypes.c_void_p.from_address(definition + _WORD))
        elif isinstance(value, types.BuiltinFunctionType) and sys.getrefcount(value) > 3:  # not one made by getattr
            self._words.append(ctypes.c_void_p.from_address(id(value) + _FUNCTION_SLOT))

    def state(self) -> tuple[Any, ...]:
        return (
            [word.value for word in self._words],
            [one.__code__ for one in self._functions],
            [one.__setitem__ for one in self._types],
            _core.installed_count(),
        )


PLAIN: tuple[Any, ...] = ()
TORCH: Torch


class Finding(Exception):  # noqa: N818  what was found, not an error of the fuzzer
    pass


# ---- one input -------------------------------------------------------------------------------------------------------


class Lists:
    """One input, on disk."""

    def __init__(self, folder: Path) -> None:
        self.lower = folder / "lower.txt"
        self.fp32 = folder / "fp32.txt"
        self.executions = 0
        self.converted = 0

    def run(self, data: bytes) -> None:
        """Convert as `data` says, and raise a Finding when anything but the documented happens."""
        self.executions += 1
        choice, content = (data[0], data[1:]) if data else (0, b"")
        side = choice & 3
        first, _, second = content.partition(SEPARATOR) if side >= 2 else (content, b"", b"")
        arguments: dict[str, Any] = {"preset": PRESETS[(choice >> 2) & 3]}
        if choice & 16:
            arguments["dtype"] = torch.float16
        if side != 1:
            self.lower.write_bytes(first)
            arguments["bf16_file_path"] = self.lower
        if side != 0:
            self.fp32.write_bytes(second if side >= 2 else first)
            arguments["fp32_file_path"] = str(self.fp32)
        if choice & 32:
            hmp.convert()
        before, policy = TORCH.state(), installation.policy
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error" if choice & 64 else "ignore", hmp.HmpWarning)
                hmp.convert(**arguments)
        except (ValueError, OSError, hmp.HmpWarning) as error:
            if isinstance(error, hmp.HmpWarning) and not choice & 64:
                raise Finding("a warning was raised that is no error") from error
            if isinstance(error, UnicodeError):
                raise Finding("a UnicodeError escaped") from error
            if TORCH.state() != before or installation.policy is not policy:
                raise Finding("convert raised, and torch is not what it was before") from error
        except Exception as error:
            raise Finding(f"convert raised {type(error).__name__}, which is not documented") from error
        else:
            self.converted += 1
            self._use(torch.float16 if choice & 16 else torch.bfloat16)
        finally:
            hmp.restore()
        if TORCH.state() != PLAIN:
            raise Finding("restore left something behind")

    @staticmethod
    def _use(lower: torch.dtype) -> None:
        if not hmp.is_converted():
            raise Finding("convert returned, and nothing is converted")
        a = torch.ones(2, 2)
        try:
            product = torch.mm(a, a)
            weights = torch.softmax(product, 0)
            a[0] = weights[0]
        except Exception as error:
            raise Finding("torch does not compute under these lists") from error
        if product.dtype not in (torch.float32, lower) or a.dtype != torch.float32:
            raise Finding(f"mm gave {product.dtype}, a is {a.dtype}")


# ---- the search ------------------------------------------------------------------------------------------------------


class Search:
    """Runs inputs until the time is over; a finding is kept and told once, by its message and where it was raised."""

    def __init__(self, seconds: float, lists: Lists) -> None:
        self._lists = lists
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self.findings: dict[str, Path] = {}
        self.folder = lists.lower.parent

    def one(self, data: bytes) -> None:
        try:
            self._lists.run(data)
        except Finding as finding:
            self._keep(finding, data)
        if time.monotonic() > self._end:
            self.finish()

    def _keep(self, finding: Finding, data: bytes) -> None:
        cause = finding.__cause__
        key = str(finding)
        if cause is not None:
            place = traceback.extract_tb(cause.__traceback__)[-1]
            said = re.sub(r"<[^>]*>|`[^`]*`|'[^']*'", "...", str(cause))[:80]
            key += f" ({type(cause).__name__} at {Path(place.filename).name}:{place.lineno}: {said})"
        if key in self.findings:
            if len(data) < self.findings[key].stat().st_size:
                self.findings[key].write_bytes(data)
            return
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"lists-{len(self.findings)}.bin"
        path.write_bytes(data)
        self.findings[key] = path
        print(f"\nFINDING {key}\n  cause: {str(cause)[:300]}\n  input: {data[:200]!r}", flush=True)

    def finish(self) -> None:
        """Say what came of it and leave; atheris knows no other way out."""
        spent = time.monotonic() - self._begin
        print(
            f"\nfuzz_lists: {self._lists.executions} executions in {spent:.0f} s, {self._lists.converted} of them "
            f"converted; {len(self.findings)} findings"
        )
        for key, path in self.findings.items():
            print(f"  {path.relative_to(ROOT)}: {key}")
        sys.stdout.flush()
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(1 if self.findings else 0)


def names() -> list[str]:
    """Names worth trying: those that lists may hold, those of shipped lists, and whatever else torch holds."""
    others: set[str] = set()
    for owner in (*(space for _, space in ops.find.namespaces()), torch._C.TensorBase, torch, F):
        others.update(dir(owner))
    return sorted({*ops.suggestions(), *presets.shipped_names(), *others})


def seeds() -> Iterator[bytes]:
    for number, path in enumerate(sorted((ROOT / "lists").glob("*.txt"))):
        yield bytes([(37 * number) & 127]) + path.read_bytes()
    yield bytes([2]) + b"mm\nadd" + SEPARATOR + b"softmax\n"
    yield bytes([3]) + b"\xef\xbb\xbfmatmul\r\n  # a comment\r\n\r\nlinear # why\r\n" + SEPARATOR + b"div\nexp"
    yield bytes([0]) + b"mm, bmm\n"
    yield bytes([1]) + b"m\x00m\n\xff\n"


def every_name(one: Callable[[bytes], None]) -> None:
    """Each name alone in a file: there are few enough to try them all."""
    for name in names():
        one(b"\0" + name.encode())
        one(b"\1" + name.encode())


def instrument() -> None:
    """Count what the package's functions reach. (An editable install has an importer that atheris cannot look into.)"""
    modules = (hmp, lists, rules, presets, ops, ops.find, installing, composites)
    for module in modules:
        owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
        for owner in owners:
            for value in vars(owner).values():
                function = getattr(value, "__wrapped__", value)
                if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                    atheris.instrument_func(function)


def with_atheris(search: Search) -> None:
    instrument()
    corpus = search.folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"{number}").write_bytes(seed)
    words = search.folder / "words"
    words.write_text(
        "".join(f'"{name}"\n' for name in [*names(), "\\x0a%%\\x0a", "\\xef\\xbb\\xbf", "\\x0d\\x0a", "#"])
    )
    options = ["-verbosity=0", f"-dict={words}", f"-max_len={LARGEST}", "-rss_limit_mb=0", "-timeout=60", str(corpus)]
    atheris.Setup([sys.argv[0], *options], search.one)
    atheris.Fuzz()


def with_hypothesis(search: Search, seed: int) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    line = st.one_of(
        st.sampled_from(names()),
        st.tuples(st.sampled_from(names()), st.sampled_from(["", " ", ".out", "_", ",", "\t", " #x", "\r", "\0"])).map(
            "".join
        ),
        st.text(max_size=20),
        st.just("%%"),
    )
    text = st.lists(line, max_size=30).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
    content = st.one_of(text, st.binary(max_size=200), st.tuples(text, st.binary(max_size=4)).map(b"".join))
    randomness = random.Random(seed)
    while True:

        @seeded(randomness.getrandbits(64))
        @settings(max_examples=1000, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.integers(0, 127), content)
        def explore(choice: int, data: bytes) -> None:
            search.one(bytes([choice]) + data)

        explore()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of hypothesis; atheris takes its own")
    parser.add_argument(
        "--engine", choices=["atheris", "hypothesis"], default="atheris" if HAS_ATHERIS else "hypothesis"
    )
    parser.add_argument("--replay", type=Path, help="run the input in this file and nothing else")
    given = parser.parse_args()
    faulthandler.enable()

    global TORCH, PLAIN  # noqa: PLW0603  made once, before anything is converted
    hmp.convert()
    hmp.restore()
    TORCH = Torch()
    PLAIN = TORCH.state()

    lists = Lists(Path(tempfile.mkdtemp(prefix="hmp-fuzz-")))
    if given.replay is not None:
        lists.run(given.replay.read_bytes())
        print("nothing found")
        return
    print(f"fuzz_lists: {given.engine}, {given.seconds:.0f} s, {len(names())} names", flush=True)
    search = Search(given.seconds, lists)
    for seed in seeds():
        search.one(seed)
    every_name(search.one)
    if given.engine == "atheris":
        with_atheris(search)
    else:
        with_hypothesis(search, given.seed)


if __name__ == "__main__":
    main()
