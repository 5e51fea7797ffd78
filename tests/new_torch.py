"""Says what a release of torch changes for this package: ``make new-torch TORCH=2.15.0``.

``python tests/new_torch.py PYTHON OTHER`` compares the torch of two environments that have the package. Each line names
something that is different, and what to do.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEVICES = ("CPU", "CUDA", "XPU")
#: The modules and classes in which torch has operations for users.
PUBLIC = ("torch", "torch.Tensor", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")


def facts() -> dict[str, Any]:
    import torch

    return {
        "torch": torch.__version__,
        "operations": sorted(operations()),
        "no kernel": sorted(set(without_kernel())),
        "refused": sorted(set(refused())),
        "autocast": {device: sorted(registered(device)) for device in DEVICES},
        "listed": {device: sorted(listed(device)) for device in DEVICES},
        "missing": sorted(set(missing_names())),
        "assumptions": assumptions(),
    }


def operations() -> Iterator[str]:
    for place in PUBLIC:
        owner = found(place)
        yield from (f"{place}.{name}" for name in dir(owner) if name[0] != "_" and callable(getattr(owner, name, None)))


def without_kernel() -> Iterator[str]:
    """The operations of torch's database that take no bfloat16 tensor on a CPU, and have no row."""
    from habana_mp import ops
    from helpers.operation_database import BF16, entries, operation_of, supports

    yield from (op.name for op in entries() if not supports(op, BF16) and operation_of(op) not in ops.rows())


def refused() -> Iterator[str]:
    """The operations of torch's database that refuse a bfloat16 tensor beside a float32 one, and have no row."""
    from habana_mp import ops
    from helpers.operation_database import entries_of_several_inputs, mixtures, operation_of

    for op in entries_of_several_inputs():
        if operation_of(op) in ops.rows():
            continue
        for plain, mixed in mixtures(op, limit=1):
            try:
                plain.copied().run(op.op)
            except Exception:
                break
            try:
                mixed.copied().run(op.op)
            except (RuntimeError, ValueError):
                yield op.name


def registered(device: str) -> set[str]:
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device}")
    return {name.removeprefix("aten::").partition(".")[0] for name in names}


def listed(device: str) -> set[str]:
    """The names in the lists of this torch's preset for a device."""
    from habana_mp.policy.presets import presets

    preset = presets()[f"torch-{device.lower()}"]
    return {one.name for one in (*preset.lower, *preset.fp32, *preset.widest)}


def missing_names() -> Iterator[str]:
    """The private names of torch that the package's code writes and that are not there."""
    for file in (ROOT / "habana_mp").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            written = f"{node.module}.{{}}" if isinstance(node, ast.ImportFrom) and not node.level else "{}"
            names = [one.name for one in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            for name in map(written.format, names):
                if name.startswith("torch.") and "._" in name and name.replace(".", "").isidentifier():
                    try:
                        found(name)
                    except (AttributeError, ImportError):
                        yield f"{name} in {file.relative_to(ROOT)}"


def found(name: str) -> Any:
    owner, _, last = name.rpartition(".")
    if not owner:
        return importlib.import_module(last)
    try:
        return getattr(found(owner), last)
    except AttributeError:
        return importlib.import_module(name)


def assumptions() -> dict[str, str]:
    from habana_mp.common import ledger
    from habana_mp.run import doctor

    with contextlib.redirect_stdout(io.StringIO()):
        doctor.show_assumptions()
    return {name: state for name, *_, state in ledger.rows()}


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yields what to do, and the names for which to do it."""

    def only_in(one: Any, other: Any) -> list[str]:
        return sorted(set(one) - set(other))

    yield "new operations; lists may name them as they are", only_in(new["operations"], old["operations"])
    yield (
        "operations that are gone: see whether a list or a row names them",
        only_in(old["operations"], new["operations"]),
    )
    yield "no kernel for bfloat16: write a row in habana_mp/ops/", only_in(new["no kernel"], old["no kernel"])
    yield "they refuse inputs of two dtypes: write a row in habana_mp/ops/", only_in(new["refused"], old["refused"])
    for device in DEVICES:
        there, before = new["autocast"][device], old["autocast"][device]
        more, fewer = only_in(there, before), only_in(before, there)
        more = [name for name in more if name not in new["listed"][device]]
        preset = f"lists/presets/torch-{device.lower()}.json"
        yield f"autocast lists them: write the release into `releases` of {preset}", more
        yield f"autocast on {device} lists them no more; nothing is to be done", fewer
    yield "private names that are gone: see what each file falls back to", only_in(new["missing"], old["missing"])
    yield (
        "assumptions that do not hold: mend their checks, or the code that relies on them",
        [
            f"{name}: {state}"
            for name, state in new["assumptions"].items()
            if state.startswith("does not hold") and state != old["assumptions"].get(name)
        ],
    )


def main(pythons: list[str]) -> int:
    command = (__file__, "--facts")
    read = [json.loads(subprocess.run([one, *command], check=True, capture_output=True).stdout) for one in pythons]
    old, new = read
    print(f"torch {new['torch']}, compared with {old['torch']}:")
    for what, names in differences(old, new):
        if names:
            print(f"\n{what}:", *names, sep="\n  ")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--facts"]:
        with contextlib.redirect_stdout(sys.stderr):
            written = facts()
        print(json.dumps(written))
    else:
        sys.exit(main(sys.argv[1:]))
