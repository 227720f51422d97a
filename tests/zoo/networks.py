"""Small versions of whole architectures: routing, scans, attention with masks, recurrence, transforms."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.zoo import case, tensors


class Experts(nn.Module):
    """Top-k routing, written as Mixtral does: each expert takes the tokens that chose it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        tokens = x.reshape(-1, 8)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return out.view(x.shape)


@case(tensors((2, 3, 8), (3, 5, 8)), tensors((4, 6, 8)))
def mixture_of_experts():
    return nn.Sequential(nn.Linear(8, 8), Experts(), nn.ReLU())


class DenseExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 16) * 0.1)
        self.down = nn.Parameter(torch.randn(4, 16, 8) * 0.1)

    def forward(self, x):
        y = torch.einsum("bnc,ech->bneh", x, self.up).relu()
        return torch.einsum("bneh,ehc,bne->bnc", y, self.down, self.gate(x).softmax(-1))


@case(tensors((2, 3, 8), (3, 5, 8)), tensors((4, 6, 8)))
def experts_by_einsum():
    return DenseExperts()


class SelectiveScan(nn.Module):
    """The loop of Mamba: one step per token."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8 + 2 * 4)
        self.decay = nn.Parameter(torch.rand(8, 4))

    def forward(self, x):
        delta, b, c = self.project(x).split([8, 4, 4], dim=-1)
        state = x.new_zeros(x.shape[0], 8, 4)
        outputs = []
        for step in range(x.shape[1]):
            keep = torch.exp(-F.softplus(delta[:, step, :, None]) * self.decay)
            state = keep * state + x[:, step, :, None] * b[:, step, None, :]
            outputs.append((state * c[:, step, None, :]).sum(-1))
        return torch.stack(outputs, dim=1)


@case(tensors((2, 3, 8), (3, 5, 8)), tensors((4, 6, 8)), failed=("1",), kinds=("shape specialisation",))
def selective_scan():
    return nn.Sequential(nn.Linear(8, 8), SelectiveScan(), nn.Linear(8, 8))


@case(tensors((2, 3, 8), (4, 3, 8)), tensors((5, 3, 8)))
def selective_scan_of_fixed_length():
    return nn.Sequential(nn.Linear(8, 8), SelectiveScan(), nn.Linear(8, 8))


class Lengths(nn.Module):
    """Attention over padded sequences."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, lengths):
        padding = torch.arange(x.shape[1], device=x.device)[None] >= lengths[:, None]
        y, weights = self.attention(x, x, x, key_padding_mask=padding)
        return y.masked_fill(padding[..., None], 0), weights


@case(
    [(x, torch.arange(len(x)) + 1) for x in tensors((2, 4, 8), (3, 6, 8))],
    [(x, torch.arange(len(x)) + 1) for x in tensors((5, 9, 8))],
)
def attention_over_lengths():
    return Lengths().eval()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, h = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], h[-1]


@case(
    [(x, torch.arange(len(x)) + 2) for x in tensors((2, 6, 4), (3, 7, 4))],
    [(x, torch.arange(len(x)) + 1) for x in tensors((5, 9, 4))],
)
def packed_sequences():
    return Packed()


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)
        self.gru = nn.GRUCell(6, 6)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 6)
        g = torch.zeros_like(h)
        for token in x.unbind(1):
            h, c = self.cell(token, (h, c))
            g = self.gru(h, g)
        return g, (h, c)


@case(tensors((2, 3, 4), (4, 3, 4)), tensors((5, 3, 4)))
def recurrent_cells():
    return Cells()


class Residual(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        if depth:
            self.inner = Residual(depth - 1)

    def forward(self, x):
        x = x * self.scale
        return self.inner(x) + 1 if hasattr(self, "inner") else x


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def a_hundred_levels_deep():
    return Residual(100)


class Pyramid(nn.Module):
    """A network for detection: sizes of one map decide those of another, outputs come as a list."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(3 if i == 0 else 4, 4, 3, 2, 1) for i in range(3))
        self.laterals = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x).relu()
            maps.append(x)
        top = self.laterals[-1](maps[-1])
        results = [top]
        for lateral, features in zip(self.laterals[-2::-1], maps[-2::-1], strict=True):
            top = lateral(features) + F.interpolate(top, size=features.shape[-2:], mode="nearest")
            results.insert(0, top)
        return results


@case(tensors((1, 3, 32, 32), (2, 3, 40, 48)), tensors((3, 3, 33, 50)), bounded=("x.shape[2]", "x.shape[3]"))
def feature_pyramid():
    return Pyramid().eval()


class Spectral(nn.Module):
    """A Fourier layer: complex weights, a transform forth and back."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.complex64) * 0.1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        mixed = torch.zeros_like(spectrum)
        mixed[..., :3] = torch.einsum("bcm,com->bom", spectrum[..., :3], self.weight)
        return torch.fft.irfft(mixed, n=x.shape[-1]), torch.view_as_real(mixed), mixed.abs()


@case(tensors((2, 4, 8), (3, 4, 12)), tensors((5, 4, 20)), bounded=("x.shape[2]",))
def fourier_layer():
    return Spectral()


class Rotary(nn.Module):
    """Rotary positions through complex numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.outer(torch.arange(32.0), 10.0 ** -torch.arange(2.0)), persistent=False)

    def forward(self, x):
        turn = torch.polar(torch.ones_like(self.angles), self.angles)[: x.shape[1]]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2)


@case(tensors((2, 5, 4), (3, 7, 4)), tensors((4, 11, 4)))
def rotary_positions():
    return Rotary()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels=None):
        logits = self.head(self.embed(ids))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


@case(
    [{"ids": torch.randint(0, 16, (n, 4)), "labels": torch.randint(0, 16, (n, 4))} for n in (2, 3)],
    [{"ids": torch.randint(0, 16, (5, 4)), "labels": torch.randint(0, 16, (5, 4))}],
)
def tied_weights_and_loss():
    return Tied()


class Generates(nn.Module):
    """Greedy decoding until a token ends it: a loop whose length depends on data."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, ids):
        for _ in range(3):
            token = self.head(self.embed(ids).mean(1)).argmax(-1, keepdim=True)
            ids = torch.cat([ids, token], dim=1)
            if (token == 3).all():
                break
        return ids


@case(
    [torch.randint(0, 16, (2, 4)), torch.randint(0, 16, (3, 5))],
    [torch.randint(0, 16, (4, 7))],
    failed=("",),
    kinds=("data-dependent branch",),
    leaves=("",),
)
def greedy_decoding():
    return Generates()


class VisionTokens(nn.Module):
    """Patches with a class token, positions interpolated to the size of the image."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def forward(self, x):
        x = self.patch(x)
        x = x + F.interpolate(self.positions, size=x.shape[-2:], mode="bilinear", align_corners=False)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        return self.block(x)[:, 0]


@case(tensors((1, 3, 16, 16), (2, 3, 24, 32)), tensors((3, 3, 20, 12)), bounded=("x.shape[2]", "x.shape[3]"))
def vision_transformer_of_any_size():
    return VisionTokens().eval()


class Windows(nn.Module):
    """Windows that are shifted and padded to a multiple, as in Swin."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        batch, length, channels = x.shape
        x = torch.roll(F.pad(x, (0, 0, 0, -length % 4)), -2, 1)
        windows = x.view(batch, x.shape[1] // 4, 4, channels).permute(0, 1, 3, 2)
        x = self.mix(windows).permute(0, 1, 3, 2).reshape(batch, -1, channels)
        return torch.roll(x, 2, 1)[:, :length] + 1


@case(tensors((1, 8, 3), (2, 7, 3)), tensors((3, 10, 3)))
def shifted_windows():
    return Windows()


class Diffusion(nn.Module):
    """Several inputs: an image, a time, a condition that may be missing."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 4), nn.SiLU())
        self.down, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 3, 4, 2, 1)

    def forward(self, x, step, condition=None):
        wave = step[:, None].float() * torch.exp(-torch.arange(4, device=x.device).float())
        y = self.down(x) + self.time(torch.cat([wave.sin(), wave.cos()], -1))[:, :, None, None]
        return self.up(y if condition is None else y + condition[:, :, None, None])


@case(
    [(x, torch.arange(len(x))) for x in tensors((1, 3, 8, 8), (2, 3, 12, 16))],
    [(x, torch.arange(len(x))) for x in tensors((4, 3, 10, 6))],
    bounded=("x.shape[2]", "x.shape[3]"),
)
def diffusion_step():
    return Diffusion()


class BeamScore(nn.Module):
    """Sorting, gathering and counting."""

    def forward(self, x):
        values, order = x.sort(dim=-1, descending=True)
        best = values.cumsum(-1).clamp(max=2.0)
        spread = torch.zeros_like(x).scatter(-1, order, best)
        return spread, torch.gather(x, 1, order[:, :2]), x.argmax(-1), torch.bincount(order[:, 0], minlength=4)[:4]


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def sorting_and_gathering():
    return BeamScore()
