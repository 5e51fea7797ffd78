"""``habana_frameworks.torch.dynamo``."""
