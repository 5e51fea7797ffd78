"""Each assumption is broken on purpose: what was promised for that happens, and never a wrong value."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import cli, hmp
from habana_mp.common import ledger
from habana_mp.patches.all import EXCHANGES
from habana_mp.patches.libraries import exchanges
from habana_mp.patches.tools.named_functions import functions_of
from helpers.broken_assumptions import broken
from helpers.processes import printed_by_each

BF16, FP32 = torch.bfloat16, torch.float32

OTHERWISE = {name: otherwise for name, _, _, otherwise, _ in ledger.rows()}
REFUSED = [name for name, otherwise in OTHERWISE.items() if otherwise == "convert refuses"]
GO_ON = [name for name in OTHERWISE if name not in REFUSED]

#: Asked when the package is imported, or its patches are made by the first convert. These are broken in a process of
#: their own.
AT_IMPORT = {
    "torch.device-types",
    "torch.compile",
    "torch.pytree",
}

#: A training on the CPU that is not compiled, watched or restricted to modules does not rely on these.
NOT_ASKED_BY_TRAINING = {
    "cpython.run-module-as-main",
    "torch.compile-context",
    "torch.compiled-runs",
    "torch.dispatch-modes",
    "torch.dynamo-callback",
    "torch.exported-programs",
    "torch.files-of-operations",
    "torch.inductor",
    "torch.module-calls",
    "torch.streams-of-accelerators",
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
        with broken(name):
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
    with broken("torch.constructor-logs-itself"):
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
        with broken(name):
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


def test_a_training_is_right_without_what_is_asked_at_import() -> None:
    asking = """
from habana_mp.common import ledger
from habana_mp.patches.all import all_patches
all_patches()
print(*(name for name, *_, state in ledger.rows() if state != "not asked yet"), sep="\\n")
"""
    training = f"{TRAINING}hmp.convert()\nprint(digest(trained()))\nhmp.restore()\nprint(digest(trained()))\n"
    scripts = [("", asking), ("", training), (",".join(AT_IMPORT), training)]
    asked, expected, found = (one.splitlines() for one in printed_by_each(scripts))
    assert set(asked) >= AT_IMPORT
    assert found == expected
    assert expected[0] != expected[1]


# ---- particular outcomes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torch.module-calls", {"within": "modules"}),
        ("torch.module-calls", {"report": "modules"}),
        ("torch.module-calls", {"report": "lines"}),
    ],
)
def test_within_and_reports_of_modules_are_refused_where_calls_of_modules_cannot_be_tapped(
    name: str, options: dict[str, Any]
) -> None:
    with broken(name), pytest.raises(RuntimeError, match=rf"{name}: broken on purpose"):
        hmp.convert(**options)
    assert not hmp.is_converted()
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32


def test_no_casts_of_weights_are_cached_where_writers_are_not_known() -> None:
    weight, x = nn.Parameter(torch.randn(64, 64)), torch.randn(8, 64)
    with broken("torch.writers-of-weights"):
        hmp.convert()
        hmp.reset_report()
        for _ in range(3):
            torch.nn.functional.linear(x, weight)
        weights = hmp.report(show=False).weights
    assert (weights.hits, weights.weights) == (0, 0)


def test_a_block_that_runs_again_without_casts_is_noticed_or_as_exact_as_float32() -> None:
    def gradient(use_reentrant: bool) -> torch.Tensor:
        torch.manual_seed(0)
        weight, x = nn.Parameter(torch.randn(16, 16)), torch.randn(4, 16, requires_grad=True)
        block: Callable[[torch.Tensor], torch.Tensor] = lambda value: torch.mm(value, weight).relu()  # noqa: E731
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant).float().sum().backward()
        assert weight.grad is not None
        return weight.grad

    exact = gradient(False)
    with broken("torch.blocks-that-run-later"):
        hmp.convert()
        torch.testing.assert_close(gradient(True), exact)
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different metadata"):
            gradient(False)


MISSING = """
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

LIBRARY = """
import sys
sys.path.insert(0, FOLDER)
from habana_mp import hmp
from habana_mp.common import ledger
hmp.convert()
print(ledger.state_of(NAME))
from MODULE import *
print(ledger.state_of(NAME))
"""


def test_what_torch_or_a_library_lacks_is_told_and_the_rest_is_exchanged(tmp_path: Path) -> None:
    sources = {
        "zuko.utils": "odeint = len",
        "torchmetrics.metric": "class Metric:\n    def _wrap_update(self): return 1\n"
        "    def _wrap_compute(self, compute): return compute\nprint(Metric()._wrap_update())",
    }
    scripts = [("", MISSING)]
    for module, source in sources.items():
        folder = tmp_path / module.partition(".")[0]
        folder.mkdir()
        (folder / "__init__.py").touch()
        (tmp_path / f"{module.replace('.', '/')}.py").write_text(source)
        name = repr(f"{folder.name}.functions")
        code = LIBRARY.replace("FOLDER", repr(str(tmp_path))).replace("NAME", name).replace("MODULE", module)
        scripts.append(("", code))
    assert printed_by_each(scripts) == [
        "False\ndoes not hold: torch.nn.utils.fusion.fuse_linear_bn_weights is missing\n",
        "not asked yet\ndoes not hold: zuko.utils.odeint is missing; "
        "zuko.utils.AdaptiveCheckpointAdjoint.backward is missing\n",
        "not asked yet\n1\ndoes not hold: torchmetrics.metric.Metric._wrap_update takes fewer arguments\n",
    ]


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
ASKED = {}


def test_functions_run_as_they_are_written_where_dynamo_cannot_be_told_and_are_compiled_where_all_holds() -> None:
    given = [("", _compiled("backend")), *((name, ASKED.get(name, _compiled("backend"))) for name in IN_DYNAMO)]
    assert printed_by_each(given) == ["True True\nFalse\n", *["True False\nFalse\n"] * len(IN_DYNAMO)]


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.slow
def test_inductors_code_gives_the_same_values_without_the_table_of_its_kernels() -> None:
    code = _compiled("'inductor'").replace("same(compiled(x), eager)", "[one.sum().item() for one in compiled(x)]")
    one, other = printed_by_each([("", code), ("torch.inductor", code)])
    assert one == other


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
    monkeypatch.setattr("habana_mp.run.doctor._print_bf16", lambda: None)
    with broken("torch.blocks-that-run-later"):
        cli.main(["doctor"])
    told = capsys.readouterr().out
    assert re.search(r"\btorch\.blocks-that-run-later\b.*: not as expected; `habana-mp doctor --assumptions`", told)


def test_the_doctor_says_what_happens_instead() -> None:
    code = "from habana_mp.cli import main; print('exit status', main(['doctor', '--assumptions']))"
    goes_on, refuses = printed_by_each([("torch.blocks-that-run-later", code), (REFUSED[0], code)])
    assert "does not hold: broken on purpose" in goes_on
    assert f"instead: {OTHERWISE['torch.blocks-that-run-later']}" in goes_on
    assert goes_on.endswith("exit status 1\n")
    assert "convert is impossible here: " in refuses
    assert refuses.endswith("exit status 1\n")
