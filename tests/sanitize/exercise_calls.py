"""Arguments, errors, second tries, functions and assignments, each driven once."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from exercise_common import converted, lists, raises
from torch.nn import functional as F

from habana_mp import _core, hmp


def the_arguments() -> None:
    """Sequences, keywords, many arguments, out= and dtype=."""
    with lists("cat stack mm lstm_cell linear sum", "softmax"):
        a, b = torch.randn(2, 3), torch.randn(2, 3).bfloat16()
        assert torch.cat([a, b]).dtype == torch.bfloat16
        assert torch.cat((a, a, b, a)).dtype == torch.bfloat16
        assert torch.cat(tensors=[a, b], dim=0).dtype == torch.bfloat16
        assert torch.stack([a] * 40).shape == (40, 2, 3)
        assert torch.cat([a, a], dim=1, out=torch.empty(2, 6)).dtype == torch.float32
        assert torch.sum(a, dim=0, dtype=torch.float32).dtype == torch.float32
        assert a.sum(0, True, dtype=torch.float64).dtype == torch.float64
        assert torch.softmax(b, 0, torch.bfloat16).dtype == torch.bfloat16
        assert torch.softmax(b, dim=0).dtype == torch.float32
        assert F.linear(a, torch.randn(4, 3), torch.randn(4)).dtype == torch.bfloat16
        assert F.linear(input=a, weight=torch.randn(4, 3), bias=None).dtype == torch.bfloat16
        cell = torch.nn.LSTMCell(3, 2)
        assert cell(a, (torch.randn(2, 2), torch.randn(2, 2)))[0].dtype == torch.bfloat16
        deep: list[Any] = [a]
        for _ in range(50):
            deep = [deep]
        itself: list[Any] = []
        itself.append(itself)
        for wrong in (deep, itself, [], [1, 2], [None], (a, 1), [a, [b, (a, [b])]], {"a": a}, "text", object()):
            with raises(TypeError, RuntimeError, ValueError):
                torch.cat(wrong)  # type: ignore[call-overload]
        with raises(TypeError):
            torch.mm(*[a] * 60)
        with raises(TypeError):
            torch.mm(**{f"k{i}": a for i in range(60)})
        with raises(TypeError):
            torch.mm(a, **{"mat2": a, "other": a})
        with raises(TypeError):
            torch.mm()
        with raises(TypeError):
            torch.Tensor.mm()
        with raises(TypeError):
            torch.Tensor.mm(1, a)
        for key in (1, None, "\udc80"):
            with raises(TypeError, UnicodeEncodeError):
                a.mm(**{key: a})  # type: ignore[misc]
            with raises(TypeError, UnicodeEncodeError):
                torch.mm(a, **{key: a})  # type: ignore[misc]


class Strange:
    @property
    def dtype(self) -> Any:
        raise RuntimeError("no dtype")


class StrangeTensor(torch.Tensor):
    broken: Any = RuntimeError

    @property
    def dtype(self) -> Any:
        raise self.broken("no dtype")


class OwnFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, kinds, args, kwargs or {})


class NoCast(torch.Tensor):
    def bfloat16(self, *_: Any, **__: Any) -> Any:
        raise KeyError("no bfloat16")


class Shrinks(torch.Tensor):
    """Reading it empties the list that it is in."""

    inside: list[Any]

    @property
    def dtype(self) -> Any:
        self.inside.clear()
        return torch.float32


def the_errors() -> None:
    with lists("mm cat mul", "exp"):
        a = torch.randn(2, 2)
        for wrong in (Strange(), StrangeTensor(a), NoCast(a), None, 1j, "x", object):
            for call in (
                lambda w: torch.mm(a, w),
                lambda w: torch.cat([a, w]),
                a.mm,
                lambda w: torch.mm(w, a),
            ):
                with contextlib.suppress(TypeError, RuntimeError, KeyError, AttributeError):
                    call(wrong)
        assert torch.mm(a.as_subclass(OwnFunction), a).dtype == torch.bfloat16
        shrinking: list[Any] = [a.as_subclass(Shrinks), a, a]
        shrinking[0].inside = shrinking
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            torch.cat(shrinking)
        with raises(RuntimeError):
            torch.mm(a, torch.randn(5, 5))
        with raises(RuntimeError):
            torch.mm(a.bfloat16(), torch.randn(5, 5))
        # Gone before the call returns, and asked for afterwards.
        for _ in range(40):
            _core.was_lowered(torch.mm(a, a))
    for text in ("nothing_of_that_name", "mm mm exp"):
        with raises(hmp.ListError), lists(text, "mm"):
            pass
    with raises(OSError):
        hmp.convert(bf16_file_path="/nonexistent/list")
    with raises(OSError):
        hmp.convert(log="/nonexistent/log")
    for action, precision in (("dance", "bf16"), ("precision", "bf8")):
        with raises(ValueError):
            _core.Rule(action=action, precision=precision)
    rule = _core.Rule(action="precision", precision="bf16")
    for target in (1, torch.Tensor.__getitem__, len, torch._C.TensorBase.__len__):
        with raises(TypeError, RuntimeError):
            _core.install([(torch.mm, torch.mm, "mm", rule, rule), (target, target, "x", rule, rule)])
    assert _core.installed_count() == 0
    with raises(TypeError):
        _core.unpatched_copy(1)
    with converted():
        assert _core.is_covered(torch.mm)
        assert not _core.is_covered(1)
        assert _core.unpatched_copy(torch.mm)(a, a).dtype == torch.float32


class OnlyFloat32:
    """A function of the user that has no bf16 kernel."""

    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if x.dtype != torch.float32:
            raise RuntimeError("\"only_float32\" not implemented for 'BFloat16'")
        return x + 1


def the_second_try() -> None:
    """Operations without a kernel for the lower precision that a list demands it of."""
    with lists("cholesky_solve frac vander cummax histc frexp ldexp igamma", ""):
        a = torch.rand(3, 3) + 1
        for call in (
            lambda: torch.igamma(a, a),
            lambda: torch.frexp(a),
            lambda: torch.histc(a, 4),
            lambda: torch.cholesky_solve(a, a),
            lambda: torch.cummax(a, 0),
        ):
            call()
        with raises(RuntimeError, TypeError):
            torch.igamma(a, torch.rand(7, 5))
    with converted():
        only = OnlyFloat32()
        wrapped = hmp.op_wrap(only, to="bf16")
        # A function of the user's may have done things before it raised: it is not called again.
        with raises(RuntimeError):
            wrapped(torch.ones(3))
        assert only.calls == 1

        def stopped(x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

        def exhausted(x: torch.Tensor) -> torch.Tensor:
            raise MemoryError

        def wrong(x: torch.Tensor) -> torch.Tensor:
            raise ValueError("always")

        for function, kind in ((stopped, KeyboardInterrupt), (exhausted, MemoryError), (wrong, ValueError)):
            with raises(kind):
                hmp.op_wrap(function)(torch.ones(3))


def the_functions() -> None:
    """op_wrap, composites and the rules where the lists are silent."""
    with converted():
        for to, expected in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
            wrapped = hmp.op_wrap(lambda x, *rest, scale=None: x * 1, to=to)
            for _ in range(3):
                assert wrapped(torch.ones(3)).dtype == expected
                assert wrapped(torch.ones(3), [torch.ones(2)], scale=torch.ones(1)).dtype == expected
        widest = hmp.op_wrap(torch.add, to="widest")
        assert widest(torch.ones(3).bfloat16(), torch.ones(3)).dtype == torch.float32
        first = hmp.op_wrap(torch.add, to="first")
        assert first(torch.ones(3).bfloat16(), torch.ones(3)).dtype == torch.bfloat16
        with raises(TypeError):
            wrapped()
        del wrapped, widest, first
        gc.collect()
        assert len(hmp.report(show=False)) > 0
        hmp.reset_report()
    with lists("mm", "normalize cosine_similarity softmin rdiv __rdiv__ softmax"):
        half = torch.rand(3, 3).bfloat16()
        F.normalize(half)
        F.normalize(input=half, dim=0)
        F.softmin(half, dim=0)
        1 / half
        with raises(TypeError):
            F.normalize()  # type: ignore[call-arg]
    with lists("add", "sub"):
        # Types and results of add in place: the target keeps what it has.
        x = torch.zeros(3)
        x += torch.ones(3).bfloat16()
        x.mul_(torch.ones(3).half())
        x.add_(1).clamp_(0, 1e38)
        assert x.dtype == torch.float32
        torch.where(x > 0, x, x.bfloat16())
        torch.lerp(x, x.bfloat16(), 0.5)
    for level in ("O2", "O0"):
        with converted(level):
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            torch.softmax(torch.ones(2, 2), 0)


def the_assignment() -> None:
    with converted():
        x, low = torch.zeros(3, 3), torch.zeros(3, 3, dtype=torch.bfloat16)
        x[0] = torch.ones(3).bfloat16()
        low[1:] = torch.ones(3)
        low[low == 0] = torch.tensor(2.0)
        x[1] = 1
        x[2] = torch.ones(3, dtype=torch.int64)
        torch.nn.Parameter(low, requires_grad=False)[0] = torch.ones(3)
        low.as_subclass(OwnFunction)[0] = torch.ones(3)
        torch.Tensor.__setitem__(low, 0, torch.ones(3))
        assert low.dtype == torch.bfloat16
        with raises(RuntimeError):
            low[0] = torch.ones(7)
        with raises(IndexError):
            low[9] = torch.ones(3)
        with raises(TypeError):
            low["x"] = torch.ones(3)  # type: ignore[index]
        with raises(TypeError, RuntimeError, NotImplementedError):
            del low[0]  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError, TypeError):
            low[0] = StrangeTensor(torch.ones(3))
        with contextlib.suppress(RuntimeError, TypeError, KeyError):
            low[0] = NoCast(torch.ones(3))

        class Later(torch.Tensor):
            pass

        low.as_subclass(Later)[0] = torch.ones(3)
    low.as_subclass(Later)[0] = torch.ones(3)
