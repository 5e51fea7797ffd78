import os

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

from habana_mp import hmp

hmp.convert(preset="recommended")
torch.manual_seed(0)
blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
model = UNet2DModel(16, 3, 3, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, **blocks)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
average = EMAModel(model.parameters(), decay=0.99)
schedule = DDPMScheduler(num_train_timesteps=1000)
images = torch.rand(8, 3, 16, 16) * 2 - 1
losses, first = [], 0
if os.path.exists("half.pt"):
    state = torch.load("half.pt")
    for one, name in ((model, "model"), (optimizer, "optimizer"), (average, "average")):
        one.load_state_dict(state[name])
    first = 4
for step in range(first, 8):
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(images.shape, generator=generator)
    times = torch.randint(0, 1000, (8,), generator=generator)
    predicted = model(schedule.add_noise(images, noise, times), times).sample
    loss = torch.nn.functional.mse_loss(predicted.float(), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.step(model.parameters())
    losses.append(loss.item())
    if step == 3:
        states = {"model": model, "optimizer": optimizer, "average": average}
        torch.save({name: one.state_dict() for name, one in states.items()}, "half.pt")
average.copy_to(model.parameters())
model.save_pretrained("final")
