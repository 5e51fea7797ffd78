"""Fuzzes calls: what plain torch does without raising, torch under `hmp.convert` must do without raising too.

    python tests/fuzz/fuzz_calls.py [--seconds 300] [--seed 0] [--case N]

Each case is one call of an operation that some policy covers, as function, descriptor, bound method or assignment, with
arguments that may be anything. It is made twice from its number, and called once in plain torch and once converted,
under the same random state. Found is:

- a converted call that raises where the plain one does not, a SystemError, or an exception left pending;
- a result of another type, shape or integer dtype, or that needs gradients where the plain one does not (and the
  reverse); where the policy says float32 for everything, other numbers in the result of float32 inputs;
- an in-place target that is another object or has another dtype afterwards;
- a reference count of an argument that ends up different;
- a crash or a call that never returns, where the plain call does neither.

The calls run in a process of their own with faulthandler, which is started again where torch itself crashes. --case
runs one case in this process and shows all of it. The exit status is 1 when anything was found.

Left out, because wrong arguments make torch itself read or write where it may not, so that whatever happens next says
nothing (:data:`UNSAFE`), or because a large number means a loop of that length or memory of that size, by design
(:data:`UNBOUNDED`, which only get small numbers).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import json
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from call_arguments import KEYWORDS, SHAPES, TAKES_LIST, TEMPLATES, UNBOUNDED, UNSAFE, Maker, Text

from habana_mp import _core, hmp, ops
from habana_mp.patches.installation import installation

#: Longer than any call takes; a call that takes longer is reported as one that does not return.
PATIENCE = 30
BATCH = 40
MEMORY = 6 << 30


class Case:
    """A call, made from its number."""

    def __init__(self, seed: int, number: int, targets: list[tuple[str, str, Any]]) -> None:
        rng = random.Random(f"{seed}:{number}")
        self.number = number
        self.operation, self.place, self.object = targets[rng.randrange(len(targets))]
        torch.manual_seed(number)
        make = Maker(rng, UNBOUNDED.search(self.operation) is not None)
        template = TEMPLATES.get(self.operation, TEMPLATES.get(self.operation.rstrip("_")))
        self.args: list[Any]
        self.kwargs: dict[Any, Any] = {}
        style = rng.random()
        if template is not None and style < 0.7:
            self.args = [one(make) for one in template]
        elif style < 0.8:
            shape = rng.choice(SHAPES)
            strange = rng.choice([0.0, 0.3])
            self.args = [make.tensor(shape, torch.float32, strange) for _ in range(rng.choice([1, 1, 2, 2, 2, 3]))]
            if TAKES_LIST.match(self.operation):
                self.args = [rng.choice([list, tuple])(self.args)]
            for _ in range(rng.choice([0, 0, 0, 1, 2])):
                self.args.append(make.number())
        else:
            self.args = [make.anything() for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 30]))]
        if rng.random() < 0.15 and self.args:
            self.args[rng.randrange(len(self.args))] = make.anything()
        if rng.random() < 0.15:
            for _ in range(rng.choice([1, 1, 2, 20])):
                name = rng.choice(KEYWORDS)
                odd: Any = rng.choice([name] * 12 + [Text(name), 1, None, "", "\udc80"])
                self.kwargs[odd] = make.anything()
        if rng.random() < 0.05 and self.args:
            self.kwargs[rng.choice(["other", "input", "value", "weight"])] = self.args.pop()
        if rng.random() < 0.05 and self.args:
            self.args.append(self.args[0])
        # Others are everybody's: None, small numbers, types.
        owned = (torch.Tensor, list, tuple, dict)
        self.leaves = [one for one in make.leaves if issubclass(type(one), owned) or type(one).__module__ == __name__]
        self.float32 = make.plain_float32
        self.way = rng.choice(["call", "call", "bound", "expanded"])
        self.place_in_torch = rng.choice(["", "", "", "no_grad", "inference", "disabled", "autocast"])

    def call(self) -> Any:
        """Call it, as it is in torch now."""
        function: Any = self.object
        args = self.args
        if isinstance(function, types.WrapperDescriptorType):
            target, key, value = args
            target[key] = value
            return target
        if self.way == "bound" and isinstance(function, types.MethodDescriptorType) and args:
            function, args = getattr(args[0], function.__name__), args[1:]
        if self.way == "expanded":
            return function(*iter(args), **self.kwargs)
        if self.kwargs:
            return function(*args, **self.kwargs)
        if len(args) == 1:
            return function(args[0])
        if len(args) == 2:
            return function(args[0], args[1])
        return function(*args)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.place_in_torch == "no_grad":
                stack.enter_context(torch.no_grad())
            elif self.place_in_torch == "inference":
                stack.enter_context(torch.inference_mode())
            elif self.place_in_torch == "disabled":
                stack.enter_context(hmp.disable_casts())
            elif self.place_in_torch == "autocast":
                stack.enter_context(torch.autocast("cpu", enabled=False))
            yield

    def __str__(self) -> str:
        words = [show(one) for one in self.args] + [f"**{{{name!r}: {show(one)}}}" for name, one in self.kwargs.items()]
        return f"{self.place}({', '.join(words)}) [{self.way}, {self.place_in_torch or 'plain'}]"


def show(value: Any, depth: int = 0) -> str:
    """A short description that runs no code of the value."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        try:
            get = torch.Tensor
            name = "" if kind is torch.Tensor else kind.__name__ + " "
            shape = tuple(get.shape.__get__(value))  # type: ignore[attr-defined]
            grad = ", grad" if get.requires_grad.__get__(value) else ""  # type: ignore[attr-defined]
            return f"<{name}{str(get.dtype.__get__(value)).removeprefix('torch.')}{list(shape)}{grad}>"  # type: ignore[attr-defined]
        except Exception:
            return f"<{kind.__name__}>"
    if kind in (int, float, bool, complex, str, bytes, type(None), slice, torch.dtype, torch.Size):
        return repr(value)[:30]
    if issubclass(kind, (list, tuple)):
        if depth > 2:
            return "[..]"
        items = tuple.__iter__(value) if issubclass(kind, tuple) else list.__iter__(value)
        return f"{kind.__name__}[{', '.join(show(one, depth + 1) for one in items)}]"
    return f"<{kind.__name__}>"


# ---- what comes of a call --------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    error: str  # "" when the call returned
    shape: Any  # of the result: types, sizes, dtypes that are no floating ones
    values: list[Any]  # of the result's tensors, where they can be compared
    same: int  # which argument the result is, -1 for none
    targets: list[Any]  # the dtypes of the arguments afterwards
    counts: list[int]  # by how much the reference counts of the leaves went up


def describe(value: Any, values: list[Any], depth: int = 0) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        get: Any = torch.Tensor
        try:
            dtype = get.dtype.__get__(value)
            shape = tuple(value.shape) if not get.is_nested.__get__(value) else "nested"
            if (
                kind in (torch.Tensor, torch.nn.Parameter)
                and get.layout.__get__(value) == torch.strided
                and value.device.type == "cpu"
            ):
                values.append(value.detach().clone())
        except Exception:
            return kind.__name__
        return (
            kind.__name__,
            "floating" if dtype.is_floating_point else "complex" if dtype.is_complex else str(dtype),
            shape,
            get.requires_grad.__get__(value),
        )
    if isinstance(value, (tuple, list)) and depth < 3:
        return (kind.__name__, [describe(one, values, depth + 1) for one in value])
    return kind.__name__


def dtypes_of(args: list[Any]) -> list[Any]:
    found = []
    for one in args:
        try:
            is_tensor = issubclass(type(one), torch.Tensor)
            found.append(str(torch.Tensor.dtype.__get__(one)) if is_tensor else None)  # type: ignore[attr-defined]
        except Exception:
            found.append(None)
    return found


def counts(leaves: list[Any]) -> list[int]:
    return [sys.getrefcount(one) for one in leaves]


def run(case: Case) -> Outcome:
    """Call a case and look at everything that is left."""
    before = counts(case.leaves)
    error, shape, values, same = "", None, [], -1
    torch.manual_seed(1)
    try:
        with case.surroundings():
            result = case.call()
        same = next((k for k, one in enumerate(case.args) if one is result), -1)
        with hmp.disable_casts():
            shape = describe(result, values)
        del result
    except Exception as raised:
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
        if isinstance(raised.__cause__ or raised.__context__, SystemError):
            error = f"SystemError behind {error}"
    # Were an exception still pending, one of these would say so.
    assert _core.reader() in ("layout", "dlpack", "attribute")
    assert int("7") == 7
    after = counts(case.leaves)
    if after != before:
        gc.collect()
        after = counts(case.leaves)
    return Outcome(
        error, shape, values, same, dtypes_of(case.args), [b - a for a, b in zip(before, after, strict=True)]
    )


def is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """As close as memory that is aligned otherwise allows; a cast to a lower precision is far from it."""
    if not theirs.is_floating_point() and not theirs.is_complex():
        return torch.equal(ours, theirs)
    size = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 0.0
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * size, equal_nan=True)


def difference(case: Case, plain: Outcome, converted: Outcome, all_float32: bool) -> str:
    """What is wrong with a converted call; "" for nothing."""
    if "SystemError" in converted.error and "SystemError" not in plain.error:
        return f"SystemError: {converted.error}"
    if "memory" in converted.error or "memory" in plain.error:
        return ""
    if converted.counts != plain.counts and bool(converted.error) == bool(plain.error):
        wrong = [
            (show(one), p, c) for one, p, c in zip(case.leaves, plain.counts, converted.counts, strict=True) if p != c
        ]
        return f"reference counts changed otherwise (argument, plain, converted): {wrong[:3]}"
    if plain.error:
        return ""
    if converted.error:
        return f"raises {converted.error}"
    # Where nothing is to be done the plain operation gives back its argument; a cast one is another tensor.
    if converted.same != plain.same and ops.is_in_place(case.operation):
        return f"the result is argument {converted.same}, in plain torch it is {plain.same}"
    if converted.targets != plain.targets:
        return f"arguments have the dtypes {converted.targets}, in plain torch {plain.targets}"
    if case.float32 and plain.same < 0 and converted.shape != plain.shape:
        return f"gives {converted.shape}, in plain torch {plain.shape}"
    if case.float32 and all_float32:
        for ours, theirs in zip(converted.values, plain.values, strict=True):
            if ours.dtype != theirs.dtype or not is_close(ours, theirs):
                return "gives other numbers although everything is float32"
    return ""


# ---- configurations --------------------------------------------------------------------------------------------------


class Configurations:
    """What is converted to; one after the other, a batch of cases each."""

    def __init__(self, folder: Path) -> None:
        self._names = folder / "all.txt"
        self._none = folder / "none.txt"
        self._none.write_text("")
        hmp.convert("O2")
        o2 = installation.policy
        hmp.convert(preset="torch-cuda")
        cuda = installation.policy
        hmp.convert()
        default = installation.policy
        hmp.restore()
        assert o2 is not None
        assert cuda is not None
        assert default is not None
        found = {
            (one.operation, one.builtin.place): one.builtin.object
            for policy in (o2, cuda, default)
            for one in policy.covered
        }
        self.targets = [(*key, value) for key, value in sorted(found.items()) if key[0] not in UNSAFE]
        self._names.write_text(
            "\n".join(sorted({operation for operation, _, _ in self.targets} - {ops.find.ASSIGNMENT}))
        )
        self.kinds: list[tuple[str, dict[str, Any]]] = [
            ("default", {}),
            ("fp16", {"dtype": torch.float16}),
            ("torch-cuda", {"preset": "torch-cuda"}),
            ("O2", {"opt_level": "O2"}),
            ("logged", {"log": folder / "log.jsonl"}),
            ("all-lower", {"bf16_file_path": self._names, "fp32_file_path": self._none}),
            ("all-lower-fp16", {"bf16_file_path": self._names, "fp32_file_path": self._none, "dtype": torch.float16}),
            ("all-fp32", {"bf16_file_path": self._none, "fp32_file_path": self._names}),
        ]

    def of(self, batch: int) -> tuple[str, dict[str, Any]]:
        return self.kinds[batch % len(self.kinds)]


# ---- worker ----------------------------------------------------------------------------------------------------------


def quiet() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(options: argparse.Namespace) -> None:
    """Run batches until the time is over; `options.state` holds the phase and number of the case under way."""
    faulthandler.enable()
    quiet()
    end = time.monotonic() + options.seconds
    state = os.open(options.state, os.O_RDWR | os.O_CREAT)
    skipped = set(json.loads(options.skip))
    with tempfile.TemporaryDirectory() as folder:
        configurations = Configurations(Path(folder))
        batch = options.batch
        # A fixed number of batches for a worker, so that what leaks in torch does not add up.
        for batch in range(options.batch, options.batch + 400):
            if time.monotonic() > end:
                break
            name, arguments = configurations.of(batch)
            numbers = [one for one in range(batch * BATCH, (batch + 1) * BATCH) if one not in skipped]

            def mark(phase: bytes, number: int, batch: int = batch) -> None:
                os.pwrite(state, struct.pack("<cqq", phase, number, batch), 0)
                faulthandler.dump_traceback_later(PATIENCE, exit=True)

            pairs = []
            for number in numbers:
                mark(b"m", number)
                with contextlib.suppress(Exception):  # some tensors cannot be made
                    pairs.append(tuple(Case(options.seed, number, configurations.targets) for _ in range(2)))
            plain = []
            for first, _ in pairs:
                mark(b"p", first.number)
                plain.append(run(first))
            hmp.convert(**arguments)
            for (_, second), expected in zip(pairs, plain, strict=True):
                mark(b"c", second.number)
                outcome = run(second)
                tell = {"case": second.number, "raised": bool(expected.error)}
                wrong = difference(second, expected, outcome, name == "all-fp32")
                if wrong:
                    tell.update(config=name, operation=second.operation, call=str(second), wrong=wrong)
                print(json.dumps(tell), flush=bool(wrong))
            hmp.restore()
        faulthandler.cancel_dump_traceback_later()
        os.pwrite(state, struct.pack("<cqq", b"d", 0, batch + 1), 0)


def one_case(options: argparse.Namespace) -> int:
    """Run one case in this process, plain and converted or only plain, and show it."""
    faulthandler.enable()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        configurations = Configurations(Path(folder))
        name, arguments = configurations.of(options.case // BATCH)
        first, second = (Case(options.seed, options.case, configurations.targets) for _ in range(2))
        print(f"{first}\nconfiguration: {name} {arguments}", flush=True)
        plain = run(first)
        print(f"plain: {plain}", flush=True)
        if options.only_plain:
            return 0
        hmp.convert(**arguments)
        converted = run(second)
        hmp.restore()
        print(f"converted: {converted}")
        wrong = difference(second, plain, converted, name == "all-fp32")
        print(wrong or "nothing is wrong")
        return 1 if wrong else 0


# ---- supervisor ------------------------------------------------------------------------------------------------------


def signature(found: dict[str, Any]) -> str:
    return f"{found['operation']}: " + re.sub(r"0x[0-9a-f]+|\d+", "N", found["wrong"])[:120]


def supervise(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    end = begin + options.seconds
    statistics: collections.Counter[str] = collections.Counter()
    findings: dict[str, dict[str, Any]] = {}
    repeated: collections.Counter[str] = collections.Counter()
    skipped: list[int] = []
    batch = 0
    command = [sys.executable, __file__, "--seed", str(options.seed)]
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        while time.monotonic() < end - 5:
            errors = Path(folder) / "errors"
            arguments = ["--worker", "--state", str(state), "--batch", str(batch), "--skip", json.dumps(skipped)]
            with errors.open("w") as to:
                worker = subprocess.Popen(
                    [*command, *arguments, "--seconds", str(end - time.monotonic())],
                    stdout=subprocess.PIPE,
                    stderr=to,
                    text=True,
                )
                assert worker.stdout is not None
                for line in worker.stdout:
                    try:
                        told = json.loads(line)
                    except ValueError:
                        continue  # torch says things, too
                    statistics["executions"] += 1
                    statistics["raised in plain torch"] += told["raised"]
                    if "wrong" in told:
                        key = signature(told)
                        repeated[key] += 1
                        if findings.setdefault(key, told) is told:
                            print(
                                f"FINDING case {told['case']} [{told['config']}] {told['call']}\n    {told['wrong']}",
                                flush=True,
                            )
                status = worker.wait()
            phase, number, batch = struct.unpack("<cqq", state.read_bytes()[:17])
            if phase == b"d" and status == 0:
                continue
            skipped.append(number)
            said = errors.read_text(errors="replace")
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            if "Timeout (" in said:
                how = "did not return"
            blame = "torch"
            if phase == b"c":
                alone = subprocess.run(
                    [*command, "--case", str(number), "--only-plain"], capture_output=True, check=False, timeout=120
                )
                blame = "torch" if alone.returncode != 0 else "us"
            statistics[f"crashes of {'plain torch' if blame == 'torch' else 'the converted call'}"] += 1
            print(f"case {number}: {how}, in phase {phase.decode()}: {blame}", flush=True)
            if blame == "us":
                findings[f"crash {number}"] = {"case": number, "wrong": how}
                print(said[-3000:], flush=True)
    print(f"\nfuzz_calls: {time.monotonic() - begin:.0f} s, seed {options.seed}, {dict(statistics)}")
    print(f"{len(findings)} findings, {sum(repeated.values())} cases")
    for key, found in findings.items():
        print(f"  case {found['case']} ({repeated[key]} times) {key}")
    return 1 if findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    parser.add_argument("--only-plain", action="store_true", help="with --case: only in plain torch")
    for name in ("--worker", "--state", "--batch", "--skip"):
        kind: dict[str, Any] = (
            {"action": "store_true"} if name == "--worker" else {"type": int if name == "--batch" else str}
        )
        parser.add_argument(name, help=argparse.SUPPRESS, **kind)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    return one_case(options) if options.case is not None else supervise(options)


if __name__ == "__main__":
    sys.exit(main())
