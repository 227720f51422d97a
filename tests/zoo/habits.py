"""Habits of real code: hooks, plain containers of modules, printing, wrapped functions, sizes from everywhere."""

import contextlib
import io
import math
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from tests.zoo import case, tensors

BRANCH = "data-dependent branch"


def scaled_input(module, args):
    return (args[0] * 2,)


def shifted_output(module, args, kwargs, output):
    return output + kwargs.get("shift", 1)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def hooks_that_change_values():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_pre_hook(scaled_input)
    model[1].register_forward_hook(shifted_output, with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: output * 3)
    return model


class Gate(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("1",), kinds=(BRANCH,), leaves=("1",))
def hooks_around_a_leaf():
    model = nn.Sequential(nn.Linear(4, 4), Gate())
    model[1].register_forward_pre_hook(scaled_input)
    model[1].register_forward_hook(shifted_output, with_kwargs=True)
    return model


class Features(nn.Module):
    """Collects activations by a hook, as feature extractors do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.found = {}
        self.body[1].register_forward_hook(lambda module, args, output: self.found.update(relu=output))

    def forward(self, x):
        self.found.clear()
        return self.body(x), self.found["relu"].mean(-1)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def features_taken_by_a_hook():
    return Features()


class Talks(nn.Module):
    def forward(self, x):
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("called", stacklevel=2)
            print("shape", x.shape)  # noqa: T201
        return x + 1


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def prints_and_warns():
    return nn.Sequential(nn.Linear(4, 4), Talks())


class Shifts(nn.Module):
    """Wraps itself in a try/finally and a context of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.depth = 0

    @contextlib.contextmanager
    def deeper(self):
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1

    def forward(self, x):
        with self.deeper() as depth, torch.no_grad():
            return self.linear(x) * depth


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def contexts_of_its_own():
    return Shifts()


class Numbers(nn.Module):
    def forward(self, x):
        rows, columns = int(x.shape[0]), float(x.shape[1])
        assert isinstance(rows, int)
        half, third = int(x.shape[1] * 0.5), math.ceil(x.shape[1] / 3)
        image = F.interpolate(x[None, None], size=(int(rows * 1.5), round(columns / 2)))
        return x[:, :half] / columns, x[:, :third] * rows, x.flatten()[: int(math.sqrt(x.numel()))], image


@case(tensors((4, 5), (5, 12)), tensors((7, 9), (2, 30)), bounded=("x.shape[1]",))
def sizes_made_numbers():
    return Numbers()


class SizesEverywhere(nn.Module):
    def forward(self, x):
        n = x.shape[0]
        half = x[: max(n // 2, 1)]
        rows = torch.arange(x.size(1), device=x.device).repeat(n, 1)
        tiled = x.repeat(2, 1).view(2, n, -1).unbind(0)
        padded = F.pad(x, (0, 8 - x.size(1) % 8))
        return half.sum(), rows, tiled[1], padded.unfold(1, 8, 8), x.new_full((n, 2), float(n)), x.numel()


@case(tensors((4, 5), (5, 12)), tensors((7, 9)))
def sizes_everywhere():
    return SizesEverywhere()


class Unique(nn.Module):
    def forward(self, x, n):
        values, counts = torch.unique(x, return_counts=True)
        return values + 1, counts, x[:, : n.item()]


@case(
    [(torch.arange(8).view(2, 4) // 3, torch.tensor(2)), (torch.arange(15).view(3, 5) // 4, torch.tensor(3))],
    [(torch.arange(28).view(4, 7) // 5, torch.tensor(1))],
)
def sizes_from_unique_and_item():
    return Unique()


class Strided(nn.Module):
    """Depends on the layout of its input."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        return x.view(x.shape[0], -1, x.shape[-1]).mean(-2), x.is_contiguous()


@case(
    [x.to(memory_format=torch.channels_last) for x in tensors((2, 3, 4, 4), (3, 3, 6, 5))],
    [x.to(memory_format=torch.channels_last) for x in tensors((4, 3, 7, 8))],
)
def channels_last_view():
    return Strided()


class Sampler(nn.Module):
    def forward(self, x, flow):
        grid = F.affine_grid(torch.eye(2, 3).expand(x.shape[0], 2, 3), list(x.shape), align_corners=False)
        warped = F.grid_sample(x, grid + flow.permute(0, 2, 3, 1) * 0.1, align_corners=False)
        columns = F.unfold(warped, 2, stride=2)
        return F.pixel_shuffle(F.fold(columns, (x.shape[2] // 2 * 2, x.shape[3] // 2 * 2), 2, stride=2), 1)


@case(
    [(x, x[:, :2]) for x in tensors((2, 3, 4, 6), (3, 3, 6, 8))],
    [(x, x[:, :2]) for x in tensors((4, 3, 8, 10))],
    assumes="x.size(2) == 4",
    bounded=("x.shape[2]", "x.shape[3]", "flow.shape[2]", "flow.shape[3]"),
)
def warped_by_a_flow():
    return Sampler()


class Switch(nn.Module):
    """Modules behind functions, lambdas and strings."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.order = ("second", "first")
        self.steps = {"scale": lambda x: x * 2, "flip": torch.neg}

    def forward(self, x, kind="scale"):
        for name in self.order:
            x = self.steps[kind](getattr(self, name)(x))
        return x


@case([(x, {"kind": "flip"}) for x in tensors((2, 4), (3, 4))], [(x, {"kind": "flip"}) for x in tensors((6, 4))])
def dispatch_by_text():
    return Switch()


class TakesModule(nn.Module):
    def forward(self, layer, x):
        return layer(x) if x.sum() > 0 else x


class GivesModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.runner = nn.Linear(4, 4), TakesModule()

    def forward(self, x):
        return self.runner(self.layer, x) + 1


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("runner",), kinds=(BRANCH,), leaves=("runner",))
def leaf_that_takes_a_module():
    return GivesModule()


class Halting(nn.Module):
    """Adaptive computation: steps until every row is done."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        total = torch.zeros(x.shape[0])
        while bool((total < 1).any()):
            x = self.step(x).tanh()
            total = total + 0.4
        return x


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("1",), kinds=(BRANCH,), leaves=("1",))
def steps_until_all_are_done():
    return nn.Sequential(nn.Linear(4, 4), Halting(), nn.ReLU())


class Detector(nn.Module):
    """Keeps the boxes above a score: outputs of unknown size, as lists and dicts."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)

    def forward(self, boxes):
        scores = self.score(boxes).squeeze(-1).sigmoid()
        results = []
        for kept, score in zip(boxes, scores, strict=True):
            chosen = (score > 0.5).nonzero().squeeze(1)
            results.append({"boxes": kept[chosen], "scores": score[chosen]})
        return results


@case(tensors((2, 12, 4), (2, 15, 4)), tensors((2, 18, 4)))
def boxes_above_a_score():
    return Detector()


class Quantiles(nn.Module):
    """Linear algebra and statistics."""

    def forward(self, x):
        centered = x - x.mean(0, keepdim=True)
        cov = centered.mT @ centered / x.shape[0] + torch.eye(x.shape[1])
        chol = torch.linalg.cholesky(cov)
        return (
            torch.linalg.solve_triangular(chol, centered.mT, upper=False).mT,
            torch.logdet(cov),
            x.var(0, correction=0),
        )


@case(tensors((6, 4), (9, 4)), tensors((12, 4)))
def linear_algebra():
    return Quantiles()
