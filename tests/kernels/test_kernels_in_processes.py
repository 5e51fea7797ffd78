"""The kernels' threads in forked children and at the end of a program, and the variable that chooses the kernels."""

from __future__ import annotations

import pytest

from helpers.arrays import PATHS, every_path, run_python

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("before", ["hmp.convert()", "pass"])
def test_a_child_forked_after_torch_used_its_threads_does_without_them(before: str) -> None:
    program = f"""
        import os, signal
        import numpy as np, torch
        from habana_mp import hmp, kernels

        torch.set_num_threads(2)
        {before}
        array = np.arange(1 << 21, dtype=np.float32)
        expected = kernels.to_bfloat16(array, threads=2).tobytes()
        torch.ones(1 << 22).exp()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            hmp.convert()
            os._exit(0 if kernels.to_bfloat16(array, threads=2).tobytes() == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("done")
    """
    result = run_python(program)
    assert result.stdout.strip() == "done", result.stderr


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(0)", "os._exit(0)", "threading.Thread(target=cast, daemon=True).start()"]
)
def test_a_program_that_has_cast_on_threads_ends_cleanly(ending: str) -> None:
    program = f"""
import os, sys, threading
import numpy as np
from habana_mp import kernels

array = np.ones(1 << 22, np.float32)

def cast():
    while True:
        kernels.to_float16(array, threads=4)

kernels.to_float16(array, threads=4)
{ending}
"""
    done = run_python(program)
    assert (done.returncode, done.stderr) == (0, "")


@every_path
def test_the_environment_variable_names_the_instruction_set(path: str) -> None:
    done = run_python("from habana_mp import kernels; print(kernels.path())", path)
    assert done.stdout.strip() == path, done.stderr


@pytest.mark.parametrize("variable", [None, ""])
def test_without_the_environment_variable_the_fastest_instruction_set_is_used(variable: str | None) -> None:
    done = run_python("from habana_mp import kernels; print(kernels.path())", variable)
    assert done.stdout.strip() == PATHS[-1], done.stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("sse9", "is not the name of an instruction set"),
        ("AVX2", "is not the name of an instruction set"),
        (next(name for name in ("neon", "avx2") if name not in PATHS), "this processor cannot run"),
    ],
)
def test_an_instruction_set_that_cannot_be_used_is_an_error_that_says_which_can(value: str, reason: str) -> None:
    done = run_python("from habana_mp import kernels", value)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "`HABANA_MP_KERNELS`" in last
    assert f"got '{value}'" in last
    assert reason in last
    assert ", ".join(PATHS) in last
