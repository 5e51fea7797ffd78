"""A DCGAN in small: generator and discriminator take turns."""

import torch
from torch import nn

torch.manual_seed(999)
NOISE, FEATURES = 8, 8


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


generator = nn.Sequential(
    nn.ConvTranspose2d(NOISE, FEATURES * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(FEATURES * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(FEATURES * 2, FEATURES, 4, 2, 1, bias=False),
    nn.BatchNorm2d(FEATURES),
    nn.ReLU(True),
    nn.ConvTranspose2d(FEATURES, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).apply(weights_init)
discriminator = nn.Sequential(
    nn.Conv2d(3, FEATURES, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(FEATURES, FEATURES * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(FEATURES * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(FEATURES * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).apply(weights_init)
criterion = nn.BCELoss()
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(3):
    real, label = torch.rand(8, 3, 16, 16) * 2 - 1, torch.ones(8)
    discriminator.zero_grad()
    on_real = criterion(discriminator(real).view(-1), label)
    on_real.backward()
    fake = generator(torch.randn(8, NOISE, 1, 1))
    on_fake = criterion(discriminator(fake.detach()).view(-1), torch.zeros(8))
    on_fake.backward()
    of_discriminator.step()
    generator.zero_grad()
    fooled = criterion(discriminator(fake).view(-1), label)
    fooled.backward()
    of_generator.step()
    print(f"step {step} loss {(on_real + on_fake).item()!r} {fooled.item()!r}")
