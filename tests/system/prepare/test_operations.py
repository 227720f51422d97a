"""The table of operations: complete, and every module in it does what the function does, values and gradients."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import get_overridable_functions
from torch.utils import _pytree as pytree

from prepbench.prepare import prepare_model
from prepbench.prepare.modules import CLASSES, Operator
from prepbench.prepare.operations import TABLE, operation_of
from tests.turns import in_turns

# names that torch reports and that no forward can call
_MACHINERY = {"__deepcopy__", "__get__", "__set__"}


class Call(torch.nn.Module):
    """Calls one function; its tensors are inputs, everything else is fixed."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.fixed = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if fixed is None else fixed[0] for fixed in self.fixed]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


# uninitialised memory, sparse formats, questions that have no tensor for an answer, and random operations, whose
# samples set the seed inside the call: BY_HAND has these
SKIPPED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "sparse.mm",
    "sparse.sampled_addmm", "to_sparse", "equal", "allclose", "item", "chalf", "normal", "bernoulli", "cauchy",
    "exponential",
    "geometric", "log_normal", "uniform", "multinomial", "randn_like", "rand_like", "randint_like", "rand", "randn",
    "randint", "nn.functional.rrelu", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
}  # fmt: skip


@cache
def database() -> dict[str, list[Any]]:
    """Torch's own sample inputs for its operations, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, list[Any]] = {}
    for entry in op_db:
        found.setdefault(entry.name, []).append(entry)
    return found


def names() -> list[str]:
    return [name for name in database() if name not in SKIPPED]


# torch's kernel for tensors without data refuses what its real one takes
STRICTER = {("addbmm", "inplace_variant")}


def variants(name: str, every: bool) -> Iterator[tuple[str, Call]]:
    """The operation's forms with some of torch's samples; in the short form, all but the function get one."""
    for entry in database()[name]:
        kinds = entry.supported_dtypes("cpu")
        if not kinds:
            continue
        kind = torch.float32 if torch.float32 in kinds else sorted(kinds, key=str)[0]
        random.seed(0)
        # what `sample_inputs` wraps: the wrapper reads the whole stack, with sources, for messages of torch's own tests
        samples = list(islice(entry.sample_inputs_func(entry, "cpu", kind, requires_grad=False), 5))
        for form in ("op", "method_variant", "inplace_variant", "operator_variant", "inplace_operator_variant"):
            function = getattr(entry, form)
            for sample in [*samples[:2], *samples[4:5]] if function is not None else []:
                call = Call(function, (sample.input, *sample.args), sample.kwargs)
                if call.tensors and runs(call) and (name, form) not in STRICTER:
                    yield form, call
                    if form != "op" and not every:
                        break


def runs(call: Call) -> bool:
    try:
        call(*[tensor.clone() for tensor in call.tensors])
    except Exception:
        return False  # a form that does not take this sample: broadcasting in place
    return True


def copies(call: Call) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in call.tensors]


def values_and_gradients(model: torch.nn.Module, call: Call) -> list[torch.Tensor]:
    """Outputs, and the gradients of all inputs if the operation has a derivative for them."""
    torch.manual_seed(0)
    inputs = copies(call)
    try:
        # operations in place do not take leaves
        leaves = _tensors(model(*[tensor * 1 if tensor.requires_grad else tensor for tensor in inputs]))
        total = [leaf.abs().sum().double() for leaf in leaves if leaf.requires_grad]
        if total:
            torch.stack(total).sum().backward()
    except (RuntimeError, NotImplementedError):
        with torch.no_grad():
            torch.manual_seed(0)
            return _tensors(model(*[tensor.detach().clone() for tensor in call.tensors]))
    return [*(leaf.detach() for leaf in leaves), *(t.grad for t in inputs if t.grad is not None)]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# torch computes these by looking at the data, which tracing by value cannot do; they are traced without samples
DATA = {
    "corrcoef", "cov", "linalg.lstsq", "istft", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss",
    "nn.functional.one_hot", "nonzero_static",
}  # fmt: skip


# nothing in these is a tensor input, or they need a GPU or a build that is not this one
WITHOUT_INPUTS = {
    "arange", "broadcast_shapes", "ones", "zeros", "full", "eye", "scalar_tensor", "triu_indices", "tril_indices",
    "jiterator_unary", "jiterator_binary", "jiterator_4inputs_with_extra_args",
    "jiterator_binary_return_by_ref", "jiterator_2inputs_2outputs", "torch.ops.aten._flash_attention_forward",
    "torch.ops.aten._efficient_attention_forward",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.stress)], ids=["few", "all"])
@pytest.mark.parametrize("name", in_turns(names(), 0, 8))
def test_values_and_gradients(name: str, every: bool) -> None:
    compared = 0
    for form, call in variants(name, every):
        symbolic = name in DATA
        if symbolic and form != "op":
            continue  # an unbound method takes no proxy
        # without samples the number of inputs must be told
        told = {"tensors": call.tensors} if symbolic else None
        prepared = prepare_model(call, inputs=None if symbolic else [call.tensors], concrete_args=told)
        assert all(kept.why for kept in prepared.preparation_report.kept)
        modules = [path for path, _ in prepared.named_modules() if path.startswith("module_")]
        assert modules or prepared.preparation_report.kept, form
        expected, got = values_and_gradients(call, call), values_and_gradients(prepared, call)
        for one, two in zip(expected, got, strict=True):
            torch.testing.assert_close(two, one, equal_nan=True, msg=lambda text, form=form: f"{form}: {text}")
        compared += 1
    assert bool(compared) != (name in WITHOUT_INPUTS or name.startswith("signal.windows"))


def test_every_function_that_can_be_overridden_is_in_the_table() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functions = [function for group in get_overridable_functions().values() for function in group]
    missing = set()
    for function in functions:
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            name = getattr(function.__self__, "__name__", "__get__")
        if name in _MACHINERY or (name.startswith("__r") and name.endswith("__")):
            continue  # reflected operators are written as the operators
        if operation_of(function) is None and operation_of(name) is None:
            missing.add(name)
    assert missing == set()


def test_each_row_has_a_module_or_a_reason() -> None:
    for name, row in TABLE.items():
        assert bool(row.class_name) != bool(row.reason), name
        assert row.class_name == "" or issubclass(CLASSES[row.class_name], Operator)


X = torch.arange(24.0).reshape(2, 3, 4) / 10 - 1
IMAGE = torch.arange(128.0).reshape(2, 1, 8, 8) / 64 - 1
BY_HAND: dict[str, Callable[..., Any]] = {
    "Adjoint": lambda x: x.adjoint(),
    "AffineGrid": lambda x: F.affine_grid(x[:, :2, :3], [2, 1, 4, 4], align_corners=False),
    "Arange": lambda x: torch.arange(3) + x.sum(),
    "Det": lambda x: torch.det(x[:, :3, :3]),
    "Detach": lambda x: x.detach() * x,
    "Dropout1d": lambda x: F.dropout1d(x, 0.5, True),
    "Eye": lambda x: x @ torch.eye(4),
    "Full": lambda x: x + torch.full((2, 1, 1), 2.0),
    "Fold": lambda x: F.fold(x.reshape(2, 4, 3)[:, :, :2].repeat(1, 1, 2), (3, 3), (2, 2)),
    "Inverse": lambda x: torch.inverse(x[:, :3, :3] + torch.eye(3)),
    "LpPool1d": lambda x: F.lp_pool1d(x, 2, 2, ceil_mode=True),
    "LpPool2d": lambda x: F.lp_pool2d(x, 2, 2),
    "MatrixPower": lambda x: torch.matrix_power(x[:, :3, :3], 2),
    "NormExceptDim": lambda x: torch.norm_except_dim(x, 2, 0),
    "NuclearNorm": lambda x: torch.nuclear_norm(x[0]),
    "FrobeniusNorm": lambda x: torch.frobenius_norm(x, [1, 2]),
    "TypeAs": lambda x: x.long().type_as(x) * x,
    "Type": lambda x: x.type(torch.float64) * x,
    "Unflatten": lambda x: x.unflatten(-1, (2, 2)),
    "Upsample": lambda x: F.interpolate(x, scale_factor=2.0, mode="linear", align_corners=True),
    "Zeros": lambda x: x + torch.zeros(4),
    "Tril": lambda x: x.tril(1),
    "H": lambda x: x[0].H,
    "MatrixT": lambda x: x[0].T,
    "MT": lambda x: x.mT,
    "Real": lambda x: torch.fft.fft(x).real,
    "Imag": lambda x: torch.fft.fft(x).imag,
    "GumbelSoftmax": lambda x: F.gumbel_softmax(x, 0.7, dim=-1),
    "ChainMatmul": lambda x: torch.chain_matmul(x[0], x[1].t(), x[0]),
    "Bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "Normal": lambda x: x * torch.empty_like(x).normal_(0, 2),
    "Uniform": lambda x: x * torch.zeros_like(x).uniform_(),
    "Multinomial": lambda x: x * torch.multinomial(x[0].sigmoid(), 2).sum(),
    "RandLike": lambda x: x + torch.rand_like(x),
    "RandnLike": lambda x: x + torch.randn_like(x),
    "RandintLike": lambda x: x + torch.randint_like(x, 3),
    "RReLU": lambda x: F.rrelu(x, 0.1, 0.3, True),
    "Dropout": lambda x: F.dropout(x, 0.5),
    "Dropout2d": lambda x: F.dropout2d(x[None], 0.5),
    "AlphaDropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "FeatureAlphaDropout": lambda x: F.feature_alpha_dropout(x, 0.5, True),
    "FractionalMaxPool2d": lambda x: F.fractional_max_pool2d(x[None], 2, (2, 2)),
    "Chalf": lambda x: x.chalf().cfloat().real * x,
    "GRU": lambda x: torch.gru_cell(x[0], x[1], x[0].repeat(3, 1)[:, :4].repeat(2, 1)[:12], x[1].repeat(4, 1)[:12]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BY_HAND)
def test_operations_that_torch_has_no_samples_for(name: str) -> None:
    call = Call(BY_HAND[name], (X.clone(),), {})
    prepared = prepare_model(call, inputs=[call.tensors])
    assert not [kept for kept in prepared.preparation_report.kept if "internal" in kept.why or "user's" in kept.why]
    for one, two in zip(values_and_gradients(call, call), values_and_gradients(prepared, call), strict=True):
        torch.testing.assert_close(two, one)
