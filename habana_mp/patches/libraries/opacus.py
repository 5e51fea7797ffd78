"""opacus clips the gradient of each example by its norm, which determines the privacy."""

# Gradients of single examples, and the inputs of layers for them.
EXACT_FUNCTIONS = {
    "opacus.grad_sample.grad_sample_module": ("*.capture_activations_hook", "*.capture_backprops_hook"),
    "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
}
