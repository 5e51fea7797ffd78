"""Each assumption is broken on purpose: what was promised for that happens, and never a wrong value."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import cli, hmp
from habana_mp.common import ledger
from habana_mp.patches.libraries import exchanges
from habana_mp.patches.tools.named_functions import functions_of
from habana_mp.patches.torch.exchanged_functions import EXCHANGES
from helpers.processes import run_script

BF16, FP32 = torch.bfloat16, torch.float32

OTHERWISE = {name: otherwise for name, _, _, otherwise, _ in ledger.rows()}
REFUSED = [name for name, otherwise in OTHERWISE.items() if otherwise == "convert refuses"]
GO_ON = [name for name in OTHERWISE if name not in REFUSED]

#: Asked when the package is imported, or its patches are made by the first convert. These are broken in a process of
#: their own.
AT_IMPORT = {
    "torch.device-types",
    "torch.dynamo-guards-on-autocast",
    "torch.linear-builtin",
    "torch.pytree",
}

#: A training that is not compiled, watched or restricted to modules does not rely on these.
NOT_ASKED_BY_TRAINING = {
    "cpython.function-slot",
    "torch.begun-backwards",
    "torch.dynamo-callback",
    "torch.dynamo-module-calls",
    "torch.dynamo-places",
    "torch.dynamo-results",
    "torch.exported-programs",
    "torch.files-of-operations",
    "torch.inductor-kernels",
    "torch.module-calls",
    "torch.module-calls-in-reports",
}

TRAINING = """
import hashlib, torch
from habana_mp import hmp
def trained(make=torch.optim.SGD, **options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    model = torch.nn.Sequential(*layers)
    optimizer = make(model.parameters(), lr=0.1, **options)
    losses = []
    for _ in range(3):
        x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return [*losses, *model.parameters()]
def digest(values):
    return hashlib.sha256(b"".join(one.detach().float().numpy().tobytes() for one in values)).hexdigest()
"""

_names: dict[str, Any] = {}
exec(TRAINING, _names)
trained: Callable[..., list[torch.Tensor]] = _names["trained"]


def run(code: str, *broken: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with these assumptions broken."""
    return run_script(textwrap.dedent(code), cwd=cwd, HABANA_MP_BREAK=",".join(broken))


def printed(code: str, *broken: str, cwd: Path | None = None) -> list[str]:
    """The lines that such a script prints."""
    done = run(code, *broken, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def changed_things() -> list[Any]:
    """What patches exchange in torch, as far as its modules are imported."""
    found: list[Any] = []
    for exchange in (*EXCHANGES, *exchanges()):
        for name, functions in exchange.table.items():
            if name in sys.modules:
                found += [one.__code__ for one in functions_of(sys.modules[name], functions)]
    optimizers, modules = importlib.import_module("torch.optim.optimizer"), torch.nn.modules.module
    found += [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)]
    found += [dict(modules._global_buffer_registration_hooks), list(sys.meta_path)]
    found += ["__init_subclass__" in vars(torch.optim.Optimizer), torch.nn.Module._call_impl.__code__]
    found += [torch.utils.checkpoint.checkpoint.__code__, torch.nn.parallel.parallel_apply.__code__]
    if "torch._dynamo" in sys.modules:
        found += [torch._dynamo.config.disable, torch._functorch.config.enable_autograd_cache]
    return found


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    """What the training comes to where everything holds."""
    hmp.convert()
    made = trained()
    hmp.restore()
    return made


def test_a_training_is_right_and_torch_is_as_it_was_without_any_of_them(expected: list[torch.Tensor]) -> None:
    before, wrong = changed_things(), []
    for name in GO_ON:
        with ledger.broken(name):
            hmp.convert()
            got = trained()
            is_lowered = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16
            hmp.restore()
            state = ledger.state_of(name)
        is_asked = name not in NOT_ASKED_BY_TRAINING | AT_IMPORT
        is_right = all(map(torch.equal, got, expected)) and is_lowered and changed_things() == before
        is_restored = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32
        if not (is_right and is_restored) or (is_asked and state != "does not hold: broken on purpose"):
            wrong.append((name, is_right, is_restored, state))
    assert wrong == []


def test_nothing_is_cast_in_a_constructor_that_does_not_log_itself() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.weight = nn.Parameter(torch.mm(torch.full((2, 2), 1.001), torch.eye(2)))

    constructor = nn.Module.__init__.__code__
    with ledger.broken("torch.constructor-logs-itself"):
        hmp.convert()
        assert nn.Module.__init__.__code__ is not constructor
        made = Product()
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16
        hmp.restore()
    assert nn.Module.__init__.__code__ is constructor
    assert made.weight.dtype is FP32
    assert torch.equal(made.weight, torch.full((2, 2), 1.001))


def test_convert_and_regions_refuse_without() -> None:
    before = changed_things()
    for name in REFUSED:
        with ledger.broken(name):
            with pytest.raises(RuntimeError, match=rf"{name}: broken on purpose.*Nothing was changed"):
                hmp.convert()
            with pytest.raises(RuntimeError, match=rf"{name}: broken on purpose"):
                hmp.autocast("cpu")
        assert not hmp.is_converted()
        assert changed_things() == before
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32
        with hmp.autocast("cpu"):
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16
        hmp.convert()
        hmp.restore()


def test_what_was_in_force_stays_where_the_next_convert_is_refused() -> None:
    hmp.convert("O2")
    with ledger.broken(REFUSED[0]), pytest.raises(RuntimeError, match="broken on purpose"):
        hmp.convert()
    assert hmp.is_converted()
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16


def test_these_are_asked_when_the_package_is_imported_and_its_patches_are_made() -> None:
    asked = printed(
        """
        from habana_mp.common import ledger
        from habana_mp.patches.all import all_patches
        all_patches()
        print(*(name for name, *_, state in ledger.rows() if state != "not asked yet"), sep="\\n")
        """
    )
    assert set(asked) == AT_IMPORT


def test_a_training_is_right_without_what_is_asked_at_import() -> None:
    code = f"{TRAINING}hmp.convert()\nprint(digest(trained()))\nhmp.restore()\nprint(digest(trained()))\n"
    expected = printed(code)
    assert printed(code, *AT_IMPORT) == expected
    assert expected[0] != expected[1]


# ---- particular outcomes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torch.module-calls", {"within": "modules"}),
        ("cpython.function-slot", {"within": "modules"}),
        ("torch.module-calls-in-reports", {"report": "modules"}),
        ("cpython.function-slot", {"report": "lines"}),
    ],
)
def test_within_and_reports_of_modules_are_refused_where_calls_of_modules_cannot_be_tapped(
    name: str, options: dict[str, Any]
) -> None:
    with ledger.broken(name), pytest.raises(RuntimeError, match=rf"{name}: broken on purpose"):
        hmp.convert(**options)
    assert not hmp.is_converted()
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32


@pytest.mark.parametrize("name", ["torch.operator-builtins", "torch.methods-that-hand-out-memory"])
def test_no_casts_of_weights_are_kept_without(name: str) -> None:
    weight, x = nn.Parameter(torch.randn(64, 64)), torch.randn(8, 64)
    with ledger.broken(name):
        hmp.convert()
        hmp.reset_report()
        for _ in range(3):
            torch.nn.functional.linear(x, weight)
        weights = hmp.report(show=False).weights
    assert (weights.hits, weights.weights) == (0, 0)


def test_open_regions_of_autocast_are_seen_without_torchs_private_answer() -> None:
    with ledger.broken("torch.any-autocast"):
        with torch.autocast("cpu", enabled=False):
            hmp.convert()
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16


def test_a_block_that_runs_again_without_casts_is_noticed_or_as_exact_as_float32() -> None:
    def gradient(use_reentrant: bool) -> torch.Tensor:
        torch.manual_seed(0)
        weight, x = nn.Parameter(torch.randn(16, 16)), torch.randn(4, 16, requires_grad=True)
        block: Callable[[torch.Tensor], torch.Tensor] = lambda value: torch.mm(value, weight).relu()  # noqa: E731
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant).float().sum().backward()
        assert weight.grad is not None
        return weight.grad

    exact = gradient(False)
    with ledger.broken("torch.checkpoint"):
        hmp.convert()
        torch.testing.assert_close(gradient(True), exact)
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different metadata"):
            gradient(False)


def test_functions_that_are_missing_are_told_and_the_others_exchanged() -> None:
    code = """
        import torch
        from habana_mp import hmp
        from habana_mp.common import ledger
        fusion = torch.nn.utils.fusion
        del fusion.fuse_linear_bn_weights
        before = fusion.fuse_conv_bn_weights.__code__
        hmp.convert()
        print(fusion.fuse_conv_bn_weights.__code__ is before)
        print(ledger.state_of("torch.functions-that-make-state"))
        """
    missing = "does not hold: torch.nn.utils.fusion.fuse_linear_bn_weights is missing"
    assert printed(code) == ["False", missing]


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ("def odeint(): pass\nclass AdaptiveCheckpointAdjoint:\n    def backward(): pass", "holds"),
        ("odeint = len", "does not hold: zuko.utils.odeint is missing; zuko.utils.AdaptiveCheckpointAdjoint.backward"),
    ],
)
def test_what_a_library_lacks_is_told_once_it_is_imported(source: str, state: str, tmp_path: Path) -> None:
    (tmp_path / "zuko").mkdir()
    (tmp_path / "zuko" / "__init__.py").touch()
    (tmp_path / "zuko" / "utils.py").write_text(source)
    code = """
        import sys
        sys.path.insert(0, "")
        from habana_mp import hmp
        from habana_mp.common import ledger
        hmp.convert()
        print(ledger.state_of("zuko.functions"))
        import zuko.utils
        print(ledger.state_of("zuko.functions"))
        """
    before, after = printed(code, cwd=tmp_path)
    assert before == "not asked yet"
    assert after.startswith(state)


def test_functions_of_a_library_that_take_other_arguments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torchmetrics").mkdir()
    (tmp_path / "torchmetrics" / "__init__.py").touch()
    source = (
        "class Metric:\n    def _wrap_update(self): return 1\n    def _wrap_compute(self, compute): return compute\n"
    )
    (tmp_path / "torchmetrics" / "metric.py").write_text(source)
    code = """
        import sys
        sys.path.insert(0, "")
        from habana_mp import hmp
        from habana_mp.common import ledger
        hmp.convert()
        from torchmetrics.metric import Metric
        print(Metric()._wrap_update())
        print(ledger.state_of("torchmetrics.functions"))
        """
    told = "does not hold: torchmetrics.metric.Metric._wrap_update takes fewer arguments"
    assert printed(code, cwd=tmp_path) == ["1", told]


# ---- compiled code ---------------------------------------------------------------------------------------------------

COMPILED = """
import torch
from habana_mp import hmp
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 16))
x, graphs = torch.randn(2, 3, 8, 8), []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
def call(x):
    with hmp.disable_casts():
        kept = x @ x
    return torch.nn.functional.normalize(model(x)), kept
def same(got, wanted):
    return all(map(torch.equal, got, wanted)) and [one.dtype for one in got] == [one.dtype for one in wanted]
hmp.convert(preset="torch-cuda", within=WITHIN, exact=EXACT)
eager = call(x)
compiled = torch.compile(call, backend=BACKEND)
print(same(compiled(x), eager), bool(graphs))
hmp.restore()
print(torch._dynamo.config.disable)
"""


def _compiled(backend: str, within: str = "None", exact: str = "None") -> str:
    return COMPILED.replace("BACKEND", backend).replace("WITHIN", within).replace("EXACT", exact)


#: What happens to a graph of our own backend.
IN_DYNAMO = [name for name, otherwise in OTHERWISE.items() if "compiles nothing" in otherwise]

#: Where each of these is asked for: where modules or exact code are told apart.
ASKED = {
    "torch.dynamo-results": _compiled("backend", exact="[same]"),
    "torch.dynamo-module-calls": _compiled("backend", "'modules'"),
}

#: A child for each, of a process that has imported Dynamo: that takes a second, not five.
EACH_IN_A_CHILD = """
import json, os, sys
import torch._dynamo
for broken, code in json.loads(sys.argv[1]):
    print(broken, flush=True)
    if os.fork() == 0:
        os.environ["HABANA_MP_BREAK"] = broken
        try:
            exec(code, {})
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.wait()
"""


def test_functions_run_as_they_are_written_where_dynamo_cannot_be_told_and_are_compiled_where_all_holds() -> None:
    given, expected = [("", _compiled("backend"))], ["", "True True", "False"]
    for name in IN_DYNAMO:
        given.append((name, ASKED.get(name, _compiled("backend"))))
        expected += [name, "True False", "False"]
    done = run_script(EACH_IN_A_CHILD, json.dumps(given))
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.slow
def test_inductors_code_gives_the_same_values_without_the_table_of_its_kernels() -> None:
    code = _compiled("'inductor'").replace("same(compiled(x), eager)", "[one.sum().item() for one in compiled(x)]")
    assert printed(code, "torch.inductor-kernels") == printed(code)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_doctor_shows_what_is_taken_for_granted(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--assumptions"])
    lines = capsys.readouterr().out.splitlines()
    states = dict(line.split(maxsplit=1) for line in lines[:-1] if not line.startswith(" "))
    assert states.keys() >= OTHERWISE.keys()
    assert states["torch.tapped-builtins"] == "holds"
    assert status == (1 if any(state.startswith("does not hold") for state in states.values()) else 0)
    assert not hmp.is_converted()


def test_the_doctor_names_what_is_not_as_expected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_print_bf16", lambda: None)
    with ledger.broken("torch.checkpoint"):
        cli.main(["doctor"])
    told = capsys.readouterr().out
    assert re.search(r"\btorch\.checkpoint\b.*: not as expected; `habana-mp doctor --assumptions`", told)


def test_the_doctor_says_what_happens_instead() -> None:
    done = run(
        "from habana_mp.cli import main; raise SystemExit(main(['doctor', '--assumptions']))", "torch.checkpoint"
    )
    assert done.returncode == 1
    assert "does not hold: broken on purpose" in done.stdout
    assert f"instead: {OTHERWISE['torch.checkpoint']}" in done.stdout
    done = run("from habana_mp.cli import main; raise SystemExit(main(['doctor', '--assumptions']))", REFUSED[0])
    assert done.returncode == 1
    assert "convert is impossible here: " in done.stdout
    assert "Traceback" not in done.stderr
