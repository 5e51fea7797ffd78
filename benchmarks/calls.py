"""Measures the cost of one call of operations that all contenders lower: torch.autocast, hmp.convert, Python functions.

python benchmarks/calls.py [--quick]

The Python functions do what apex's O1 does: they replace torch's attributes, cast, and call the original.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from states import autocast, converted, converted_but_disabled, outside_of_regions, patched_in_python, region
from timing import Contender, run

from habana_mp import hmp


def operations(activation: torch.Tensor, image: torch.Tensor):
    """Yields names and calls; the weights are already in bf16, so only the activation may need a cast."""
    made = {"dtype": torch.bfloat16, "requires_grad": True, "device": activation.device}
    weight = torch.randn(16, 16, **made)
    matrix = torch.randn(16, 16, **made)
    kernel = torch.randn(4, 1, 3, 3, **made)
    yield "F.linear", lambda: F.linear(activation, weight)
    yield "torch.matmul", lambda: torch.matmul(activation, matrix)
    yield "x @ y", lambda: activation @ matrix
    yield "F.conv2d", lambda: F.conv2d(image, kernel)


def cases(device: str = "cpu"):
    """Yields for each case the casts in words, true if autograd tracks the call, and the operation's name and call."""
    for case, dtype in (("no cast", torch.bfloat16), ("one activation cast", torch.float32)):
        for grad in (False, True):
            # an activation is not a leaf: it is the result of another operation
            activation = torch.randn(4, 16, requires_grad=grad, device=device).to(dtype) * 1
            image = torch.randn(1, 1, 4, 16, requires_grad=grad, device=device).to(dtype) * 1
            for name, call in operations(activation, image):
                yield case, grad, name, call


class Again(torch.nn.Module):
    """Calls a module a hundred times."""

    def forward(self, module: torch.nn.Module) -> None:
        for _ in range(100):
            module(None)


class Loop(torch.nn.Module):
    """Makes a call a thousand times in a module that is called `free`."""

    def __init__(self, call) -> None:
        super().__init__()
        self.free = Repeated(call)
        self.ruled = torch.nn.Identity()

    def forward(self) -> None:
        self.ruled(None)
        self.free()


class Repeated(torch.nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.call = call

    def forward(self) -> None:
        for _ in range(1000):
            self.call()


def beside_rules(x: torch.Tensor):
    """Yields names and calls. They are made in a module while rules name another module."""
    lowered, weight, module = x.bfloat16(), torch.randn(16, 16).bfloat16(), torch.nn.Identity()
    yield "F.linear", lambda: F.linear(lowered, weight)
    yield "torch.floor", lambda: torch.floor(x)  # no list of the preset names it, but `*` includes it
    yield "a module", lambda: module(None)


#: The states in which these calls are compared.
RULED = {
    "no rule": lambda: converted(preset="recommended"),
    "a rule": lambda: converted(preset="recommended", rules={"* @ ruled": "fp32"}),
    "a thousand": lambda: converted(
        preset="recommended", rules={"* @ ruled": "fp32", **{f"* @ ruled.{i}": "fp32" for i in range(999)}}
    ),
}


def added(ours: Contender, plain: Contender) -> float:
    """Returns the difference in nanoseconds of the shortest rounds. Other load on the machine can only make a round
    longer, and the difference is small."""
    return (min(ours.seconds) - min(plain.seconds)) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    quick = parser.parse_args().quick
    options = {"rounds": 7 if quick else 21, "target_seconds": 0.02 if quick else 0.08}
    torch.set_num_threads(1)

    print(f"torch {torch.__version__}, one thread, 4x16 tensors; time of a call, as a multiple of torch.autocast's")
    print(
        f"{'case':<22}{'operation':<14}{'grad':<6}{'autocast':>10}{'hmp':>10}{'ratio':>8}  {'middle half':<14}"
        f"{'python':>8}  middle half"
    )
    for case, grad, name, call in cases():
        peer = Contender("autocast", call, autocast)
        ours = Contender("hmp", call, converted)
        python = Contender("python", call, patched_in_python)
        with torch.set_grad_enabled(grad):
            run([peer, ours, python], **options)
        ratio, low, high = ours.ratio_to(peer)
        python_ratio, python_low, python_high = python.ratio_to(peer)
        print(
            f"{case:<22}{name:<14}{grad!s:<6}{peer.median * 1e9:>8.0f}ns{ours.median * 1e9:>8.0f}ns"
            f"{ratio:>8.3f}  {low:.3f}..{high:.3f}  "
            f"{python_ratio:>8.3f}  {python_low:.3f}..{python_high:.3f}"
        )

    print("\nin a region of ours, as a multiple of torch.autocast's; and under convert, in the same rounds")
    activation = torch.randn(4, 16)
    with torch.no_grad():
        for name, call in operations(activation, torch.randn(1, 1, 4, 16)):
            peer, ours = Contender("autocast", call, autocast), Contender("region", call, region)
            under_convert = Contender("convert", call, converted)
            run([peer, ours, under_convert], **options)
            print(
                f"one activation cast   {name:<14}{ours.ratio_to(peer)[0]:>8.3f}{under_convert.ratio_to(peer)[0]:>8.3f}"
            )

    print("\nentering and leaving a region, in nanoseconds")
    with hmp.autocast("cpu"):
        pass
    reused, reused_autocast = hmp.autocast("cpu"), torch.autocast("cpu")
    for name, ours, peer in (
        ("made anew", lambda: hmp.autocast("cpu"), lambda: torch.autocast("cpu")),
        ("used again", lambda: reused, lambda: reused_autocast),
    ):

        def enter_and_leave(make=ours):
            with make():
                pass

        def enter_and_leave_autocast(make=peer):
            with make():
                pass

        mine, theirs = Contender("hmp", enter_and_leave), Contender("autocast", enter_and_leave_autocast)
        run([theirs, mine], **options)
        ratio, low, high = mine.ratio_to(theirs)
        print(f"{name:<22}{theirs.median * 1e9:>8.0f}ns{mine.median * 1e9:>8.0f}ns{ratio:>8.3f}  {low:.3f}..{high:.3f}")
    hmp.restore()

    print("\nwhat is added to a call, in nanoseconds (what the same call takes without habana_mp is taken off)")
    short = {"rounds": 15 if quick else 101, "target_seconds": 0.01}
    x = torch.randn(4, 16)
    weight = torch.randn(16, 16)
    one = torch.ones(())

    def function() -> torch.Tensor:
        return torch.t(x)

    def method() -> torch.Tensor:
        return x.t()

    def with_argument() -> torch.Tensor:
        return one.mul_(one)

    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "casts.log"
        # The added time does not depend on the operation. With an operation of 2000 ns it would be smaller than the
        # noise.
        for name, call in (("torch.t(x)", function), ("x.t()", method), ("x.mul_(y)", with_argument)):
            plain = Contender("plain", call)
            disabled = Contender("disabled", call, converted_but_disabled)
            beside = Contender("outside of regions", call, outside_of_regions)
            run([plain, disabled, beside], **short)
            print(f"under disable_casts  {name:<12}{added(disabled, plain):>8.0f} ns")
            print(f"outside of regions   {name:<12}{added(beside, plain):>8.0f} ns")
        module, inside = torch.nn.Identity(), Again()
        for name, call, count in (("a module", lambda: module(None), 1), ("one within", lambda: inside(module), 100)):
            plain = Contender("plain", call)
            watched = Contender("within", call, lambda: converted(within="modules"))
            run([plain, watched], **short)
            print(f'within="modules"     {name:<12}{added(watched, plain) / count:>8.0f} ns')
        plain, outside = (
            Contender("plain", function),
            Contender("outside", function, lambda: converted(within="modules")),
        )
        run([plain, outside], **short)
        print(f"outside of modules   {'torch.t(x)':<12}{added(outside, plain):>8.0f} ns")
        lowered, lowered_weight = x.bfloat16(), weight.bfloat16()
        for name, call in beside_rules(x):
            loop = Loop(call)
            plain, ruled, many = (Contender(state, loop, enter) for state, enter in RULED.items())
            run([plain, ruled, many], **short)
            print(f"a rule elsewhere     {name:<12}{added(ruled, plain) / 1000:>8.1f} ns")
            print(f"a thousand elsewhere {name:<12}{added(many, plain) / 1000:>8.1f} ns")
        silent = Contender("silent", lambda: F.linear(lowered, lowered_weight), converted)
        logged = Contender("logged", silent.call, lambda: converted(log=log))
        run([silent, logged], **short)
        print(f"a log line to a file {'F.linear':<12}{added(logged, silent):>8.0f} ns")


if __name__ == "__main__":
    main()
