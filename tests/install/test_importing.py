"""What importing the package and converting bring in, and what they leave alone."""

from __future__ import annotations

from helpers.processes import run_script


def test_importing_and_converting_brings_in_no_heavy_part_of_torch() -> None:
    done = run_script(
        "import torch, torch.utils.data, torch.utils.checkpoint, sys\n"  # the last is heavy itself in older releases
        "before = set(sys.modules)\n"
        "import habana_mp\n"
        "imported = set(sys.modules) - before\n"
        "habana_mp.convert(); torch.mm(torch.eye(2), torch.eye(2)); habana_mp.restore()\n"
        "converted = set(sys.modules) - before\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'torch.distributed', 'torch.fx', 'torch.onnx', 'torch._export',\n"
        "         'torch.testing', 'sympy', 'pandas', 'scipy', 'matplotlib')\n"
        "print(sorted(name for name in imported | converted if name.startswith(heavy)))\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_changes_nothing_in_torch() -> None:
    done = run_script(
        "import torch\n"
        "before = {name: id(getattr(torch, name)) for name in dir(torch)}\n"
        "import habana_mp\n"
        "print({name for name, was in before.items() if id(getattr(torch, name)) != was}, habana_mp.is_converted())\n"
    )
    assert done.stdout.strip() == "set() False", done.stderr
