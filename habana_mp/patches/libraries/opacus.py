"""opacus computes the gradient of each example, and clips its norm."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

_FUNCTIONS = assumption_of_library("opacus", "make gradients of single examples, and are exact")

EXCHANGES = (
    Exchange(
        exactly,
        {
            # Gradients of single examples, whose norm determines the privacy, and the inputs of layers for them.
            "opacus.grad_sample.grad_sample_module": ("*.capture_activations_hook", "*.capture_backprops_hook"),
            "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
        },
        _FUNCTIONS,
    ),
)
