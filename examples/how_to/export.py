import torch

from habana_mp import hmp

hmp.convert(preset="recommended")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Softmax(-1), torch.nn.Linear(128, 10)).eval()
example = (torch.randn(4, 64),)
program = torch.export.export(model, example)
torch.export.save(program, "model.pt2")
torch._inductor.aoti_compile_and_package(program, package_path="model.aoti.pt2")
torch.onnx.export(model, example, "model.onnx", dynamo=True)
