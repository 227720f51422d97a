"""Embeddings in integers: what is looked up, and what the files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.objects.compare import sqnr
from tests.turns import every_second

ROWS, SIZE = 500, 64
IDS = [(torch.arange(14).reshape(2, 7) * 31 % ROWS,), (torch.arange(36).reshape(3, 12) * 17 % ROWS,)]
DEPLOYMENTS = {"onnxruntime": pb.OnnxRuntimeDeployment(), "openvino": pb.OpenVinoDeployment()}


class Words(nn.Module):
    """A table, a layer, and scores for each row of the table."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle, self.head = nn.Embedding(ROWS, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, ROWS)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.table(ids)).tanh())


def compiled(model: nn.Module, deployment: Any, bits: int, block: int, symmetric: bool = True) -> Any:
    return pb.compile_model(
        model.eval(),
        tracing_inputs=IDS,
        calibration_inputs=IDS,
        deployment_settings=deployment,
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False, bias_correction=False),
        quantization_settings=pb.QuantizationSettings(
            weights_num_bits=bits,
            prefer_weights_only_quantization=True,
            weights_only_quantization_block_size=block,
            weights_symmetric=symmetric,
        ),
        layer_quantization_settings={"Embedding": pb.LayerQuantizationSettings(weights_num_bits=bits)},
    )


FORMS = {
    "8 bits": (8, 0, True),
    "4 bits": (4, 0, True),
    "4 bits in blocks": (4, 32, True),
    "4 bits in blocks with a zero point": (4, 32, False),
}


@pytest.mark.parametrize(
    ("form", "tied", "target"),
    every_second(FORMS, {"apart": False, "tied": True}, {name: name for name in DEPLOYMENTS}),
)
def test_tables_are_stored_in_the_bits_that_were_named(form: Any, tied: bool, target: str) -> None:
    bits, block, symmetric = form
    model = Words(tied)
    found = compiled(model, DEPLOYMENTS[target], bits, block, symmetric)
    reference = compiled(model, pb.EagerDeployment(), bits, block, symmetric)
    assert [row.weights_bits for row in found.report.layers] == [bits] * 3
    # their 4-bit kernels round what they multiply to 8 bits
    assert sqnr(reference(*IDS[1]), found(*IDS[1])) > (25 if target == "onnxruntime" or bits == 4 else 60)
    weights = ROWS * SIZE * (1 if tied else 2) + SIZE * SIZE
    scales = (2 * ROWS + SIZE) * 5 * (SIZE // block if block else 1)
    assert found.report.size_bytes < weights * bits // 8 + scales + 4 * (ROWS + SIZE) + 30_000


@pytest.mark.parametrize("target", DEPLOYMENTS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_calls_without_tokens_give_no_rows(form: Any, target: str) -> None:
    found = compiled(Words(), DEPLOYMENTS[target], *form)
    assert found(torch.zeros(0, 7, dtype=torch.long)).shape == (0, 7, ROWS)
    assert found(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, ROWS)


@pytest.mark.parametrize(("bits", "block"), [(8, 0), (4, 0), (4, 32)])
def test_a_product_reads_the_bytes_of_the_table(tmp_path: Path, bits: int, block: int) -> None:
    import onnx

    compiled(Words(tied=True), DEPLOYMENTS["onnxruntime"], bits, block).save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").rglob("model.onnx")
    graph = onnx.load(file).graph
    (product,) = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert next(node.input[0] for node in graph.node if node.op_type == "Gather") == product.input[1]


@pytest.mark.parametrize("tied", [False, True])
def test_tables_get_8_bits_unless_a_rule_names_theirs_or_a_layer_shares_them(tied: bool) -> None:
    model = Words(tied)
    settings = pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    )

    def bits_and_block(rules: Any = None) -> Any:
        row = pb.explain_settings(model, settings, rules)[0].settings
        return row.weights_num_bits, row.weights_only_quantization_block_size

    named, other = pb.LayerQuantizationSettings(weights_num_bits=4), pb.LayerQuantizationSettings(observer="mse")
    assert bits_and_block() == ((4, 32) if tied else (8, 0))
    if tied:  # it has what its layer has, which this rule says nothing of
        with pytest.raises(SettingsError, match="changes nothing"):
            bits_and_block({"table": other})
    else:
        assert bits_and_block({"table": other}) == (8, 0)
    assert bits_and_block({"table": named}) == bits_and_block({"*": named}) == (4, 32)


def test_the_report_says_why_a_table_has_8_bits() -> None:
    report = pb.compile_model(
        Words().eval(),
        calibration_inputs=IDS,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True),
    ).report
    assert [row.weights_bits for row in report.layers] == [8, 4, 4]
    assert "a rule with its weights_num_bits gives 4" in report.layers[0].note


def test_tables_stay_in_float_with_integer_activations() -> None:
    rows = pb.explain_settings(Words(), pb.QuantizationSettings())
    assert [row.fqn for row in rows] == ["middle", "head"]
    with pytest.raises(SettingsError, match="changes nothing"):
        pb.explain_settings(Words(), pb.QuantizationSettings(), {"table": pb.LayerQuantizationSettings(observer="mse")})
