from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.errors import CaptureError, InputError


def same(captured: Captured, *inputs: Any, **keywords: Any) -> bool:
    with torch.no_grad():
        actual = captured.program.module()(*inputs, **keywords)
        expected = captured.model(*inputs, **keywords)
    torch.testing.assert_close(actual, expected)
    return True


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


@pytest.mark.parametrize("batches", [(1, 2), (2, 1), (1, 1, 3)])
def test_batch_is_dynamic_in_any_order_of_samples(batches: tuple[int, ...]) -> None:
    captured = capture(cnn(), [torch.randn(n, 3, 16, 16) for n in batches])
    assert all(same(captured, torch.randn(n, 3, 16, 16)) for n in (1, 2, 7))
    assert captured.leaves == ()


def test_prefill_and_decode_are_one_graph() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(input_ids)
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            return self.head(nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))

    samples = [{"input_ids": torch.zeros(1, n, dtype=torch.long)} for n in (1, 256)]
    captured = capture(Decoder(), samples)
    assert all(same(captured, input_ids=torch.randint(0, 50, (1, n))) for n in (1, 2, 33, 300))


class BranchOnOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if x.shape[0] == 1 else x + 1


def test_a_branch_on_size_one_is_not_captured_wrongly() -> None:
    with pytest.raises(FullGraphError, match="sample"):
        capture(BranchOnOne(), [torch.randn(1, 2), torch.randn(3, 2)])
    captured = capture(BranchOnOne(), [torch.randn(1, 2), torch.randn(3, 2)], fullgraph=False)
    assert same(captured, torch.randn(1, 2))
    assert same(captured, torch.randn(5, 2))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.seen = 0
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.mask is None or self.mask.shape[0] != x.shape[0]:
            self.mask = torch.arange(x.shape[0], dtype=x.dtype)
        x.mul_(2)
        return self.drop(self.norm(x)) + self.mask[:, None]


def test_the_model_and_the_samples_are_left_as_they_were() -> None:
    model, samples = Stateful(), [torch.randn(2, 4), torch.randn(3, 4)]
    model.norm.register_forward_hook(lambda *_: None)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    copies, random_state = [x.clone() for x in samples], torch.get_rng_state()
    capture(model, samples, fullgraph=False)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert (model.seen, model.mask, model.training) == (0, None, True)
    assert all(torch.equal(x, copy) for x, copy in zip(samples, copies, strict=True))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert len(model.norm._forward_hooks) == 1


def test_weights_are_shared() -> None:
    model = nn.Linear(4, 2)
    captured = capture(model, [torch.randn(2, 4)])
    assert captured.program.state_dict["weight"].data_ptr() == model.weight.data_ptr()


def test_functions_and_bound_methods() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(4, 2)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.proj(x).relu()

    samples, tower = [torch.randn(2, 4), torch.randn(3, 4)], Tower()
    assert same(capture(lambda x: {"y": tower.encode(x)}, samples), torch.randn(5, 4))
    captured = capture(tower.encode, samples)
    assert "proj.weight" in captured.program.state_dict
    torch.testing.assert_close(captured.program.module()(samples[0]), tower.encode(samples[0]))


def test_arguments_of_every_kind() -> None:
    class Sum(nn.Module):
        def forward(self, first: torch.Tensor, *rest: torch.Tensor, flag: bool = False, **extra: torch.Tensor) -> Any:
            total = sum(rest, first)
            return {"total": total * extra["scale"] if flag else total, "nothing": None}

    def sample(n: int) -> Any:
        return torch.randn(n, 4), torch.randn(n, 4), {"flag": True, "scale": torch.randn(1)}

    captured = capture(Sum(), [sample(1), sample(2)])
    assert same(captured, torch.randn(6, 4), torch.randn(6, 4), flag=True, scale=torch.randn(1))


def test_numpy_and_int_of_a_size_work_through_dynamo() -> None:
    class Numpy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() * 2).view(int(x.shape[0]), -1)

    assert same(capture(Numpy(), [torch.randn(2, 4), torch.randn(3, 4)]), torch.randn(6, 4))


def test_a_program_that_fails_on_its_own_sample_is_not_returned() -> None:
    class Try(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return x.view(-1, 3)
            except RuntimeError:
                return x

    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    with pytest.raises(CaptureError):
        capture(Try(), samples)
    captured = capture(Try(), samples, fullgraph=False)
    assert [leaf.fqn for leaf in captured.leaves] == [""]
    assert same(captured, samples[1])


def test_meta_models_are_captured_without_weights() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.ReLU())
    captured = capture(model, [torch.empty(1, 100_000), torch.empty(2, 100_000)])
    assert [axis.dim for axis in captured.axes.dynamic] == [0]
    assert any("linear" in str(node.target) for node in captured.program.graph.nodes)


def test_a_model_that_does_not_run_says_so() -> None:
    with pytest.raises(CaptureError, match=r"Linear itself raises on inputs\[1\]"):
        capture(nn.Linear(4, 2), [torch.randn(2, 4), torch.randn(2, 5)])
    with pytest.raises(InputError, match="module or a function"):
        capture(3, [torch.randn(2)])  # type: ignore[arg-type]


def test_a_lazy_model_has_to_run_first() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(InputError, match="Call the model once"):
        capture(model, [torch.randn(2, 3)])
    model(torch.randn(2, 3))
    assert same(capture(model, [torch.randn(2, 3)]), torch.randn(2, 3))


def test_failing_exports_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FullGraphError):
        capture(BranchOnOne(), [torch.randn(1, 2), torch.randn(3, 2)])
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_repr_says_what_was_captured() -> None:
    text = repr(capture(nn.Linear(4, 2), [torch.randn(1, 4), torch.randn(2, 4)]))
    assert "Captured Linear: 1 operations, 2 samples" in text
    assert "input.shape[0] (batch)" in text
