"""The findings of an audit. The text of each ends with the line that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from habana_mp import _core
from habana_mp.auditing.state import Named, State, Updates, by_dtype, dtype_name, layer_of, local, percent
from habana_mp.diagnosis.exact import LOWER, is_lower
from habana_mp.reporting.remedies import Finding


def findings_of(state: State, updates: Mapping[str, Updates]) -> tuple[Finding, ...]:
    """Returns all findings."""
    return *_lower_weights(state, updates), *_of_kinds(state), *_lower_reductions(state), *_tied_apart(state)


def _finding(kind: str, name: str, dtype: torch.dtype, text: str) -> Finding:
    return Finding(kind, _core.printable(text), name=name, dtype=dtype_name(dtype))


class _Kind(NamedTuple):
    """A kind of finding about tensors that should not be in lower precision."""

    name: str
    tensors: Callable[[State], Named]
    words: str


def _in_half(state: State) -> Named:
    # The weights stand for gradients that are not computed yet.
    return {name: one for name, one in {**state.trained, **state.gradients}.items() if one.dtype is torch.float16}


def _of_higher(named: Named, of: Named) -> Named:
    """Returns the tensors that belong to one of these in higher precision, which has the same name."""
    return {name: one for name, one in named.items() if name in of and not is_lower(of[name])}


def _states(state: State) -> Named:
    return {name: one for name, one in state.states.items() if not is_lower(state.trained[name.rpartition(" ")[0]])}


def _buffers(state: State) -> Named:
    """Returns the buffers of modules with weights in higher precision, and running statistics that are updated."""
    found = {}
    for name, module in state.model.named_modules():
        own = [one for one in module.parameters(recurse=False) if one.is_floating_point()]
        is_updated = module.training and bool(getattr(module, "track_running_stats", False))
        if is_updated or (own and not any(map(is_lower, own))):
            found.update(module.named_buffers(name, recurse=False))
    return found


_KINDS = (
    _Kind(
        "refused by GradScaler",
        _in_half,
        "torch.amp.GradScaler refuses {count} gradients in {dtype} ({first}): `Attempting to unscale FP16 gradients.` "
        "Keep the model in float32, and at the top of the script write `hmp.convert(dtype=torch.float16)`",
    ),
    _Kind(
        "lower optimizer state",
        _states,
        "{count} states of the optimizer are in {dtype} ({first}), and their weights in float32: small changes of "
        "averages get lost. Before the first step, write `optimizer.load_state_dict(optimizer.state_dict())`",
    ),
    _Kind(
        "lower gradients",
        lambda state: _of_higher(state.gradients, state.trained),
        "{count} gradients are in {dtype} ({first}), and their weights in float32: each sum of gradients is rounded. "
        "Before the backward, write `for one in model.parameters(): one.grad_dtype = one.dtype`",
    ),
    _Kind(
        "lower buffer",
        _buffers,
        "{count} buffers are in {dtype} ({first}): small changes of running statistics get lost. After the model is "
        "made, write "
        "`for one in model.buffers(): one.data = one.data.float() if one.is_floating_point() else one.data`",
    ),
    _Kind(
        "lower average",
        State.averages,
        "{count} averages of weights are in {dtype} ({first}): an update of an average is small, and gets lost. Write "
        "`AveragedModel(model).float()`",
    ),
    _Kind(
        "saved in lower precision",
        lambda state: _of_higher(state.saved, {**state.weights, **state.tied, **state.buffers}),
        "state_dict() rounds {count} tensors to {dtype} ({first}): a training that resumes begins with other weights. "
        "Write `torch.save({{**model.state_dict(), **dict(model.named_parameters())}}, path)`",
    ),
)


def _of_kinds(state: State) -> Iterator[Finding]:
    for kind in _KINDS:
        for dtype, those in _by_lower_dtype(kind.tensors(state)):
            words = kind.words.format(count=len(those), dtype=dtype_name(dtype), first=_first(those))
            yield _finding(kind.name, next(iter(those)), dtype, words)


def _lower_weights(state: State, updates: Mapping[str, Updates]) -> Iterator[Finding]:
    for dtype, those in _by_lower_dtype(state.lower_weights):
        layers = list(dict.fromkeys(map(layer_of, those)))
        where = layers[0] if len(layers) == 1 else ""
        how = f"{len(those)} of {len(state.trained)} trained weights are in {dtype_name(dtype)} ({_first(those)})"
        if _is_loaded(state.model, dtype):
            how += ", the dtype of the checkpoint, which `from_pretrained` uses by default"
            line = "To load them in float32, write `from_pretrained(..., dtype=torch.float32)`"
        else:
            line = (
                "Before the optimizer is made, write `for one in model.parameters(): one.data = one.data.float() if "
                "one.requires_grad else one.data`"
            )
            if where or not any(map(is_lower, state.frozen.values())):
                model = f"model.get_submodule('{where}')" if where else "model"
                line = f"Before the optimizer is made, write `{model}.float()`"
        lost = _lost(state, {layer: updates[layer] for layer in layers})
        yield _finding("lower weights", where, dtype, f"{how}, without a copy in float32: {lost}. {line}")


def _lost(state: State, updates: Mapping[str, Updates]) -> str:
    """Returns the words about the share of updates that the next step rounds to zero."""
    shares = {layer: one.share for layer, one in updates.items() if one.share is not None}
    optimizer = type(state.optimizer).__name__
    layer, error = next(((layer, one.failed) for layer, one in updates.items() if one.failed), ("", ""))
    of_layer = f" for `{layer}`" if layer else ""
    failed = f"the step of a copy of {optimizer} failed{of_layer}: {error}" if error else ""
    if not shares and failed:
        return f"small updates get lost. It is unknown how many, since {failed}"
    if not shares:
        return "small updates get lost. A `torch.optim` optimizer after a backward shows how many"
    whole = sum(one.lost for one in updates.values()) / sum(one.all for one in updates.values())
    worst = max(shares, key=lambda one: shares[one])
    most = f" ({percent(shares[worst])} in `{worst}`)" if len(updates) > 1 else ""
    share = f"the next step of {optimizer} rounds {percent(whole)} of their updates to zero{most}"
    return f"{share}; {failed}" if failed else share


def _is_loaded(model: torch.nn.Module, dtype: torch.dtype) -> bool:
    """True if a module is a model of transformers that was loaded in this dtype."""
    configurations = [getattr(one, "config", None) for one in model.modules() if getattr(one, "name_or_path", "")]
    return any(getattr(one, "dtype", None) is dtype for one in configurations)


def _lower_reductions(state: State) -> Iterator[Finding]:
    lower = [one for one in state.reductions if one.chosen_by and one.dtype in LOWER]
    for dtype, chosen_by in dict.fromkeys((one.dtype, one.chosen_by) for one in lower):
        names = [one.name for one in lower if (one.dtype, one.chosen_by) == (dtype, chosen_by)]
        line = (
            f"Write `{chosen_by}(..., reduce_dtype=torch.float32)`"
            if chosen_by.startswith("MixedPrecision")
            else f"Remove `model.register_comm_hook(..., {chosen_by})`"
        )
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"{chosen_by} rounds the gradients of {names[0] or 'the model'}{more} to {dtype_name(dtype)}"
        yield _finding("lower reduction", names[0], dtype, f"{text}, and sums them over ranks in it. {line}")


def _tied_apart(state: State) -> Iterator[Finding]:
    """Finds matrices of the model that are equal but for their precision. Both are trained, or both are not: the
    teacher of a student is another weight on purpose."""
    matrices = {
        name: local(one.detach())
        for name, one in state.weights.items()
        if one.dim() >= 2 and one.is_floating_point() and not one.is_meta
    }
    exact = {name: one for name, one in matrices.items() if not is_lower(one)}
    for dtype, those in _by_lower_dtype(matrices):
        for name, one in those.items():
            for other, its in exact.items():
                if (name in state.trained) == (other in state.trained) and _is_rounded(one, its):
                    text = (
                        f"`{name}` in {dtype_name(dtype)} has the values of `{other}` in float32, but is not tied to "
                        f"it: training makes them differ. Write `model.get_submodule('{layer_of(name)}')."
                        f"{name.rpartition('.')[2]} = model.get_parameter('{other}')`"
                    )
                    yield _finding("tied in two precisions", name, dtype, text)


def _is_rounded(matrix: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if the matrix is the other one, rounded, and not all of one value. Most differ in the first row already."""
    if matrix.shape != exact.shape or not torch.equal(matrix[:1], exact[:1].to(matrix.dtype)):
        return False
    return torch.equal(matrix, exact.to(matrix.dtype)) and len(torch.unique(matrix)) > 1


def _by_lower_dtype(named: Named) -> Iterator[tuple[torch.dtype, Named]]:
    return ((dtype, those) for dtype, those in by_dtype(named) if dtype in LOWER)


def _first(named: Named) -> str:
    return f"`{next(iter(named))}`" + (", ..." if len(named) > 1 else "")
