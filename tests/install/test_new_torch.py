"""``make new-torch`` finds what a release of torch changes."""

from __future__ import annotations

from typing import Any

import new_torch


def test_every_private_name_of_torch_is_there() -> None:
    assert list(new_torch.missing_names()) == []


def test_a_release_that_differs_is_told_with_what_to_do() -> None:
    old: dict[str, Any] = {
        "operations": ["torch.add", "torch.gone"],
        "no kernel": [],
        "refused": ["dot"],
        "autocast": {"CPU": ["linear"], "CUDA": ["linear", "mm"], "XPU": []},
        "listed": {"CPU": [], "CUDA": [], "XPU": ["linear"]},
        "missing": [],
        "assumptions": {"torch.files": "holds", "torch.codes": "does not hold: never did"},
    }
    new = {
        **old,
        "operations": ["torch.add", "torch.linalg.matrix_sqrth"],
        "no kernel": ["linalg.matrix_sqrth"],
        "refused": ["dot", "cdist"],
        "autocast": {"CPU": ["linear", "linalg_matrix_sqrth"], "CUDA": ["linear"], "XPU": ["linear"]},
        "missing": ["torch._C._gone in habana_mp/patches/torch/memory.py"],
        "assumptions": {"torch.files": "does not hold: moved", "torch.codes": "does not hold: never did"},
    }
    assert list(new_torch.differences(old, old)) == [(what, []) for what, _ in new_torch.differences(old, new)]
    assert [(what.partition(":")[0], names) for what, names in new_torch.differences(old, new) if names] == [
        ("new operations; lists may name them as they are", ["torch.linalg.matrix_sqrth"]),
        ("operations that are gone", ["torch.gone"]),
        ("no kernel for bfloat16", ["linalg.matrix_sqrth"]),
        ("they refuse inputs of two dtypes", ["cdist"]),
        ("autocast lists them", ["linalg_matrix_sqrth"]),
        ("autocast on CUDA lists them no more; nothing is to be done", ["mm"]),
        ("private names that are gone", ["torch._C._gone in habana_mp/patches/torch/memory.py"]),
        ("assumptions that do not hold", ["torch.files: does not hold: moved"]),
    ]
