"""opacus clips the gradient of each example by its norm, which determines the privacy."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("opacus", "make gradients of single examples, and are exact")

# Gradients of single examples, and the inputs of layers for them.
_HOOKS: Table = {
    "opacus.grad_sample.grad_sample_module": ("*.capture_activations_hook", "*.capture_backprops_hook"),
    "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
}
EXCHANGES = (Exchange(exactly, _HOOKS, _FUNCTIONS),)
