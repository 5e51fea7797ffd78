"""A variational autoencoder: a reconstruction's loss and a divergence."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21, self.fc22 = nn.Linear(32, 4), nn.Linear(32, 4)
        self.fc3, self.fc4 = nn.Linear(4, 32), nn.Linear(32, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(reconstructed, x, mu, logvar):
    bce = F.binary_cross_entropy(reconstructed, x.view(-1, 64), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch in range(5):
    data = torch.rand(16, 1, 8, 8)
    optimizer.zero_grad()
    reconstructed, mu, logvar = model(data)
    loss = loss_function(reconstructed, data, mu, logvar)
    loss.backward()
    optimizer.step()
    print(f"batch {batch} loss {loss.item() / len(data)!r}")
