"""Hugging Face architectures for which nothing was prepared: all of them prepared, equal at two sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from prepbench.prepare import prepare_model
from tests.turns import in_turns
from tests.zoo.huggingface import ARCHITECTURES, build, without_log_lines

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with without_log_lines():
        yield


# parts of these decide on data; they stay whole, and the rest is prepared
WHOLE = {
    "longformer": "encoder", "switch_transformers": "experts", "mamba": "backbone", "rwkv": "rwkv",
    "vilt": "embeddings", "dinov2": "embeddings",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turns(ARCHITECTURES, 0, 4))
def test_prepared_and_equal(name: str) -> None:
    torch.manual_seed(0)
    model, samples = build(name)
    keys = list(model.state_dict())
    prepared = prepare_model(model, inputs=samples)
    report = prepared.preparation_report
    assert report.largest_difference is not None
    assert report.largest_difference <= 1e-5
    # on the samples, and on sizes that none of them has
    assert any(c.inputs.startswith("unseen sizes: ") and not c.note for c in report.compared), report
    assert [key for key in prepared.state_dict() if key in set(keys)] == keys
    untraced = {kept.fqn for kept in report.kept if "cannot be traced" in kept.why}
    assert all(WHOLE.get(name, "-") in fqn for fqn in untraced), untraced
