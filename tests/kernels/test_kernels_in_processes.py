"""The kernels' threads in forked children and at the end of a program, and the variable that chooses the kernels."""

from __future__ import annotations

from helpers.arrays import PATHS
from helpers.each import each
from helpers.processes import run_script


def test_a_child_forked_after_torch_used_its_threads_does_without_them() -> None:
    done = run_script("""
import os, signal
import numpy as np, torch
from habana_mp import hmp, kernels

torch.set_num_threads(2)
hmp.convert()
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
""")
    assert done.stdout.strip() == "done", done.stderr


@each("ending", ["", "threading.Thread(target=cast, daemon=True).start()"])
def test_a_program_that_has_cast_on_threads_ends_cleanly(ending: str) -> None:
    program = f"""
import threading
import numpy as np, torch
from habana_mp import kernels

torch.set_num_threads(4)
array = np.ones(1 << 22, np.float32)

def cast():
    while True:
        kernels.to_float16(array, threads=4)

kernels.to_float16(array, threads=4)
{ending}
"""
    done = run_script(program)
    assert (done.returncode, done.stderr) == (0, "")


@each("variable", [*PATHS, ""])
def test_the_environment_variable_names_the_instruction_set_else_the_fastest_is_used(variable: str) -> None:
    done = run_script("from habana_mp import kernels; print(kernels.path())", HABANA_MP_KERNELS=variable)
    assert done.stdout.strip() == (variable or PATHS[-1]), done.stderr


@each(
    "value, reason",
    [
        ("AVX2", "is not the name of an instruction set"),
        (next(name for name in ("neon", "avx2") if name not in PATHS), "this processor cannot run"),
    ],
)
def test_an_instruction_set_that_cannot_be_used_is_an_error_that_says_which_can(value: str, reason: str) -> None:
    done = run_script("from habana_mp import kernels", HABANA_MP_KERNELS=value)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "`HABANA_MP_KERNELS`" in last
    assert f"got '{value}'" in last
    assert reason in last
    assert ", ".join(PATHS) in last
