"""Ways to change the weight of a layer, as data. Each call of a way changes the weight once.

A way is made for one layer (an ``nn.Linear`` of 48 to 48), perhaps takes an alias of its weight, and is then called
with 1 or 2: through an alias, 1 changes all elements and 2 a single one.
"""

from __future__ import annotations

from functools import partial

import torch

from helpers.weight_changes import aliases, in_place, layers, memory, optimizers
from helpers.weight_changes.aliases import ALIASES
from helpers.weight_changes.basics import Way, noise, write
from helpers.weight_changes.in_place import IN_PLACE
from helpers.weight_changes.optimizers import OPTIMIZERS

#: Ways that need no preparation before they change the weight.
AT_ONCE: dict[str, Way] = {
    **{name: layers.in_place(change) for name, change in IN_PLACE.items()},
    "storage.copy_": lambda of: lambda n: of.weight.untyped_storage().copy_(noise().untyped_storage()),
    "storage.fill_": lambda of: lambda n: of.weight.untyped_storage().fill_(0x3C + n),
    "storage[i] = byte": lambda of: lambda n: aliases.set_byte(of.weight.untyped_storage(), n),
    "typed storage[i] = x": lambda of: lambda n: aliases.set_element(of.weight._typed_storage(), n),
    "apply_": layers.in_place(aliases.by_apply),
    "map_": layers.in_place(aliases.by_map),
    "map2_": layers.in_place(aliases.by_map_two),
    "set_": layers.in_place(lambda w, n: torch.empty(0).set_(w.detach()).add_(n)),
    "set_ by keyword, one element": layers.in_place(
        lambda w, n: in_place.set_one(torch.empty(0).set_(source=w.detach()), n)
    ),
    "map2_ of data, one element": layers.in_place(lambda w, n: aliases.by_map_two(w.data, 2)),
    "data.add_": layers.at_once(lambda of, n: of.weight.data.add_(n)),
    "data[i, j] = x": layers.at_once(lambda of, n: in_place.set_one(of.weight.data, n)),
    "replaced": layers.at_once(layers.replaced),
    "set in the dictionary": layers.at_once(layers.set_in_the_dictionary),
    "data = x": layers.at_once(layers.set_data),
    "data = x, and back": layers.at_once(layers.set_data_and_back),
    "swap_tensors": layers.at_once(layers.swapped),
    "by float64": layers.at_once(layers.by_float64),
    "left in float16": layers.at_once(layers.left_in_float16),
    "by the meta device": layers.at_once(layers.by_the_meta_device),
    "_apply": layers.at_once(lambda of, n: of._apply(lambda one: one + n)),
    "swapped on conversion": layers.at_once(
        partial(layers.on_conversion, switch=torch.__future__.set_swap_module_params_on_conversion)
    ),
    "overwritten on conversion": layers.at_once(
        partial(layers.on_conversion, switch=torch.__future__.set_overwrite_module_params_on_conversion)
    ),
    "load_state_dict": layers.at_once(lambda of, n: of.load_state_dict(layers.noise_state(of))),
    "load_state_dict(assign=True)": layers.at_once(
        lambda of, n: of.load_state_dict(layers.noise_state(of), assign=True)
    ),
    "state_dict, fresh": layers.at_once(lambda of, n: write(of.state_dict()["weight"], n)),
    "storage emptied": layers.at_once(layers.storage_emptied),
    "version kept": layers.at_once(layers.without_a_version),
    "version kept, one element": layers.at_once(layers.one_element_without_a_version),
    "version set back": layers.at_once(layers.version_set_back),
    "version set back after use": layers.at_once(layers.version_set_back_after_use),
    "custom operator": layers.at_once(layers.custom_operator),
    "pruned": layers.at_once(layers.pruned),
    "parametrized and removed": layers.at_once(layers.parametrized_and_removed),
    "by a thread": aliases.by_a_thread,
}

#: Ways that prepare something, perhaps long before they change the weight.
PREPARED: dict[str, Way] = {
    **{f"alias: {name}": partial(aliases.through, take) for name, take in ALIASES.items()},
    "state_dict, held": aliases.through_state_dict,
    "state_dict(keep_vars=True), held": partial(aliases.through_state_dict, keep_vars=True),
    "storage.copy_, held": partial(
        aliases.through_storage, change=lambda held, n: held.copy_(noise().untyped_storage())
    ),
    "storage.fill_, held": partial(aliases.through_storage, change=lambda held, n: held.fill_(0x3C + n)),
    "storage[i] = byte, held": partial(aliases.through_storage, change=aliases.set_byte),
    "typed storage[i] = x, held": partial(aliases.through_storage, change=aliases.set_element, typed=True),
    "tied": aliases.tied,
    "gradient hook": partial(aliases.in_a_graph_of_hooks, hook=lambda w, write: w.register_hook(lambda grad: write())),
    "post-accumulate hook": partial(
        aliases.in_a_graph_of_hooks, hook=lambda w, write: w.register_post_accumulate_grad_hook(lambda one: write())
    ),
    "forward pre-hook": aliases.by_a_forward_hook,
    "from_numpy": memory.from_numpy,
    "from_dlpack of an array": memory.from_dlpack,
    "frombuffer of bytes": memory.from_bytes,
    "half of a tensor": memory.half_of_a_tensor,
    "memmap": memory.memmap,
    "file mapped twice": partial(memory.of_file, change=memory.map_again),
    "file written": partial(memory.of_file, change=memory.write_the_file),
    "shared with a process": memory.shared,
    "optimizer in the backward": optimizers.in_the_backward,
    **{f"step: {name}": partial(optimizers.steps, make) for name, make in OPTIMIZERS.items()},
}

WAYS = {**AT_ONCE, **PREPARED}

#: One or two ways of each sort, for tests in which all of them would take too long.
MAIN = (
    *("add_", "copy_", "w[i, j] = x", "set_", "_foreach_copy_", "data.add_", "data[i, j] = x", "data = x", "replaced"),
    *("swap_tensors", "load_state_dict", "load_state_dict(assign=True)", "storage[i] = byte", "by float64"),
    *("version kept, one element", "version set back", "storage emptied", "alias: data", "alias: numpy"),
    *("alias: from_dlpack", "alias: data_ptr", "alias: tensor of its storage", "alias: view", "tied", "kron, out"),
    *("from_numpy", "memmap", "step: SGD", "step: AdamW, foreach", "step: Adam, fused", "step: OneElement"),
    *("step: LBFGS", "by a thread", "map_", "_fused_sgd_, one element", "foreign function"),
)

#: Ways through pointers, of which single values that are written are not seen (docs/weights.md). A DLPack tensor that
#: was made before the weight's first use is a pointer too.
POINTERS = frozenset(
    f"alias: {name}" for name in ALIASES if name.startswith(("data_ptr", "address")) or "dlpack" in name.lower()
)
