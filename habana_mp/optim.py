"""This release alone says what to use instead of the optimizers that were here."""

raise ImportError(
    "`habana_mp.optim` is gone: use `torch.optim` (AdamW, Adam, SGD, Adagrad), with `fused=True` for weights in float32"
)
