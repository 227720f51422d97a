"""Operators with their own rules: custom autograd, checkpoints, transforms, functionals."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo import case, tensors


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


class CustomGradient(nn.Module):
    def forward(self, x):
        return Double.apply(x) + 1


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def custom_autograd():
    return CustomGradient()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        x = checkpoint(self.a, x, use_reentrant=False)
        return checkpoint(lambda y: self.b(y) * 2, x, use_reentrant=False)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def checkpoints():
    return Checkpointed()


class VmapMask(nn.Module):
    def forward(self, x, lengths):
        index = torch.arange(x.shape[1])
        mask = torch.vmap(lambda n: torch.vmap(lambda i: i < n)(index))(lengths)
        return x.masked_fill(~mask, 0.0)


@case(
    [(x, torch.arange(len(x))) for x in tensors((2, 4), (3, 6))],
    [(x, torch.arange(len(x))) for x in tensors((5, 9))],
)
def mask_built_by_vmap():
    return VmapMask()


class Functionals(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 3, 3, 3) * 0.1)
        self.slope = nn.Parameter(torch.full((6,), 0.3))

    def forward(self, x):
        x = F.conv2d(x, self.w, None, padding=1)
        x = F.prelu(x, self.slope)
        x = F.interpolate(x, size=(x.size(2) * 2, x.size(3)), mode="bilinear", align_corners=False)
        x = F.elu(x, alpha=0.3) + x.softmax(-1) + torch.softmax(x, 1) + F.gelu(x, approximate="tanh")
        x, _ = F.max_pool2d(x, 2, return_indices=True)
        x = F.dropout(x, 0.5, self.training)
        a, b = x.chunk(2, dim=1)
        x = torch.cat(tensors=[a, b, a], dim=-1).flatten(1).mean(-1, keepdim=True)
        return F.pad(x, (1, 1)), torch.einsum("bi,bj->bij", x, x)


@case(tensors((2, 3, 4, 6), (3, 3, 8, 6)), tensors((5, 3, 6, 6)))
def functionals():
    return Functionals().eval()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        return y.transpose(1, 2).reshape(b, n, c)


@case(tensors((2, 3, 8), (3, 5, 8)), tensors((4, 7, 8)))
def attention():
    return Attention()


class MixedPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.a(x) @ self.b.weight
        with torch.autocast("cpu", enabled=False):
            x = x.float()
        return self.b(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def mixed_precision():
    return MixedPrecision()


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def cond():
    return nn.Sequential(Cond(), nn.ReLU())


class ReentrantCheckpoint(Checkpointed):
    def forward(self, x):
        return checkpoint(self.a, x, use_reentrant=True) + 1


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def reentrant_checkpoint():
    return ReentrantCheckpoint()


class GradientStep(nn.Module):
    """Moves its input along the gradient of an energy that a layer computes."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(3, 3)

    def forward(self, x):
        return x - 0.1 * torch.func.grad(lambda y: self.energy(y).square().sum())(x)


@case(tensors((2, 3), (3, 3)), tensors((1, 3), (5, 3)), symbolic_failed=("0",))
def gradient_inside():
    return nn.Sequential(GradientStep(), nn.Linear(3, 3))
