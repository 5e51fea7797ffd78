"""``habana_frameworks.torch.utils``."""
