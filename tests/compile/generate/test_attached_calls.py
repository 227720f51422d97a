"""Calls inside ``compiled.attached(model)`` that are not of generation: compiled, or it is said that they are not."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError, PrepbenchWarning
from tests.compile.generate.generating import PROMPTS, TARGETS, compile_for, make_model, make_samples
from tests.compile.generate.test_attached import Calls

EAGER = {"eager": TARGETS["eager"]}
PADDED = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(layers=1)


@pytest.fixture(scope="module")
def compiled(model: Any) -> pb.CompiledModel:
    return compile_for(model, EAGER)["eager"]


@pytest.fixture(scope="module")
def recorded(model: Any) -> pb.CompiledModel:
    """As the documentation tells to compile: its graph gives the logits of the last token."""
    with pb.record_inputs(model) as samples:
        model.generate(PROMPTS, max_new_tokens=3)
        model.generate(PROMPTS[:1, :3], max_new_tokens=3)
    return pb.compile_model(model, tracing_inputs=samples, deployment_settings=TARGETS["eager"])


@pytest.fixture(scope="module")
def later(model: Any) -> pb.CompiledModel:
    with pb.record_inputs(model) as samples:
        model.generate(PROMPTS, max_new_tokens=4)
        model.generate(PROMPTS[:1, :3], max_new_tokens=3)
    steps = [sample for sample in samples if sample.kwargs["input_ids"].shape[1] == 1]
    return pb.compile_model(model, tracing_inputs=steps, deployment_settings=TARGETS["eager"])


def ran(compiled: pb.CompiledModel, model: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a call inside of a strict block, which the compiled model has run once."""
    calls = Calls(compiled)
    with compiled.attached(model, strict=True), torch.no_grad():
        found = model(*args, **kwargs)
    calls.remove()
    assert calls.count == 1
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"labels": PROMPTS},
        {"labels": PROMPTS.masked_fill(PADDED == 0, -100)},
        {"labels": PROMPTS, "num_items_in_batch": torch.tensor(7)},
        {"attention_mask": PADDED},
        {"use_cache": False},
    ],
)
def test_calls_of_evaluation_run_compiled(options: dict[str, Any], model: Any, compiled: Any) -> None:
    with torch.no_grad():
        expected = model(PROMPTS, **options)
    found = ran(compiled, model, PROMPTS, **options)
    assert list(found) == list(expected)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.stress
def test_a_loss_is_that_of_the_compiled_logits(model: Any) -> None:
    samples = make_samples(model)
    settings = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True)
    four_bits = pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=samples,
        quantization_settings=settings,
        deployment_settings=TARGETS["ONNX Runtime"],
    )
    found = ran(four_bits, model, PROMPTS, labels=PROMPTS)
    expected = model.loss_function(logits=found.logits, labels=PROMPTS, vocab_size=40)
    assert torch.equal(found.loss, expected)
    with torch.no_grad():
        assert not torch.allclose(found.loss, model(PROMPTS, labels=PROMPTS).loss, rtol=1e-4)


def test_a_loss_of_another_kind_is_the_models_own(model: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = type(model).forward

    def smoothed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(self, *args, **kwargs)
        result.loss = None if result.loss is None else result.loss * 0.9 + 0.1
        return result

    monkeypatch.setattr(type(model), "forward", smoothed)
    monkeypatch.setattr(smoothed, "__wrapped__", own, raising=False)
    calls = Calls(compiled)
    with torch.no_grad(), compiled.attached(model), pytest.warns(pb.PrepbenchWarning, match="labels= were given"):
        found = model(PROMPTS, labels=PROMPTS).loss
    calls.remove()
    assert calls.count == 0
    torch.testing.assert_close(found, smoothed(model, PROMPTS, labels=PROMPTS).loss)


def test_training_inside_of_a_block_is_the_models_own(model: Any, compiled: Any) -> None:
    model.train()
    with compiled.attached(model), pytest.warns(pb.PrepbenchWarning, match="in training mode"):
        assert model(PROMPTS, labels=PROMPTS).loss.requires_grad
    model.eval()


def test_all_logits_of_a_graph_that_gives_the_last(model: Any, recorded: Any) -> None:
    from transformers import DynamicCache

    with torch.no_grad():
        expected = model(PROMPTS).logits
    with recorded.attached(model), torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(model(PROMPTS).logits, expected)
        torch.testing.assert_close(model(PROMPTS[:1]).logits, model(PROMPTS).logits[:1])
        last = model(PROMPTS, past_key_values=DynamicCache(config=model.config), logits_to_keep=1).logits
        with pytest.raises(InputError, match="logits_to_keep: generation asks for the logits of all tokens"):
            model(PROMPTS, past_key_values=DynamicCache(config=model.config))
    assert [one.category for one in said] == [pb.PrepbenchWarning]
    assert said[0].filename == __file__
    assert "the compiled graph gives those of 1" in str(said[0].message)
    torch.testing.assert_close(last, expected[:, -1:])
    torch.testing.assert_close(ran(recorded, model, PROMPTS, logits_to_keep=1).logits, expected[:, -1:])
    with (
        recorded.attached(model, strict=True),
        pytest.raises(InputError, match=r"does not run compiled.*without logits_to"),
    ):
        model(PROMPTS)


POSITIONS: dict[str, Callable[[torch.Tensor], torch.Tensor] | None] = {
    "the model's own": None,  # -1 for padding
    "padding, too": lambda mask: torch.arange(mask.shape[1]).expand(mask.shape),
    "padding at zero": lambda mask: (mask.cumsum(1) - 1).masked_fill(mask == 0, 0),
    "two for each token": lambda mask: 2 * (mask.cumsum(1) - 1).clamp(min=0),
}


@pytest.fixture(scope="module")
def learned_positions() -> tuple[Any, pb.CompiledModel]:
    from transformers import OPTConfig, OPTForCausalLM

    class Counting(OPTForCausalLM):  # type: ignore[misc]
        count = None

        @functools.wraps(OPTForCausalLM.forward)
        def forward(self, *args: Any, **given: Any) -> Any:
            if self.count is not None and given.get("position_ids") is None and "attention_mask" in given:
                given["position_ids"] = self.count(given["attention_mask"])
            return super().forward(*args, **given)

    torch.manual_seed(3)
    config = OPTConfig(
        vocab_size=40, hidden_size=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=16,
        max_position_embeddings=32,
    )  # fmt: skip
    model = Counting(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4.0) if parameter.dim() > 1 else None
    return model, compile_for(model, EAGER, positions=True)["eager"]


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_of_padded_calls_are_those_that_the_model_counts(kind: str, learned_positions: Any) -> None:
    model, compiled = learned_positions
    model.count = POSITIONS[kind]
    call = {
        "input_ids": PROMPTS,
        "attention_mask": PADDED,
        "labels": PROMPTS.masked_fill(PADDED == 0, -100),
    }
    with torch.no_grad():
        expected = model(**call)
    if kind == "two for each token":
        with (
            compiled.attached(model),
            torch.no_grad(),
            pytest.warns(PrepbenchWarning, match="it gives no position_ids"),
        ):
            found = model(**call)
    else:
        found = ran(compiled, model, **call)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.loss, expected.loss)


def test_parts_that_the_graph_does_not_give_are_asked_for_in_vain(model: Any, compiled: Any) -> None:
    message = "output_attentions=True: the compiled graph gives logits, past_key_values"
    with compiled.attached(model):
        with pytest.raises(InputError, match=message):
            model(PROMPTS, output_attentions=True)
        with pytest.raises(InputError, match=message):
            model.generate(PROMPTS, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
        with pytest.raises(InputError, match="further_keyword was not among the tracing inputs"):
            model(PROMPTS, further_keyword=3)


def test_encodings_and_stop_strings_of_a_tokenizer(model: Any, compiled: Any) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import BatchEncoding, PreTrainedTokenizerFast

    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"\u0120{letter}" for letter in "abcdefghijklmn")]
    words = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    encoding = BatchEncoding({"input_ids": PROMPTS, "attention_mask": torch.ones_like(PROMPTS)})
    options = {"max_new_tokens": 8, "stop_strings": ["b"], "tokenizer": tokenizer, "pad_token_id": 0}
    expected = model.generate(**encoding, **options)
    with compiled.attached(model, strict=True):
        assert torch.equal(model.generate(**encoding, **options), expected)
        with pytest.raises(InputError, match=r"got a BatchEncoding of input_ids, attention_mask. Call model\(\*\*enc"):
            model(encoding)


def test_first_steps_in_pytorch_are_said_once(model: Any, later: Any) -> None:
    calls = Calls(later)
    expected = model.generate(PROMPTS, max_new_tokens=4)
    with later.attached(model), pytest.warns(pb.PrepbenchWarning, match="first step is another graph") as said:
        found = [model.generate(PROMPTS, max_new_tokens=4) for _ in range(2)]
    calls.remove()
    assert len(said) == 1
    assert calls.count == 6
    assert all(torch.equal(one, expected) for one in found)


def test_a_shell_of_other_weights_makes_no_first_step(model: Any, later: Any, tmp_path: Path) -> None:
    later.save(tmp_path / "later")
    loaded = pb.load_compiled(tmp_path / "later")
    torch.manual_seed(8)
    shell = type(model)(model.config).eval()
    with (
        loaded.attached(shell),
        pytest.warns(pb.PrepbenchWarning),
        pytest.raises(InputError, match="Load the checkpoint"),
    ):
        shell.generate(PROMPTS, max_new_tokens=2)
    with torch.device("meta"):
        hollow = type(model)(model.config).eval()
    with (
        loaded.attached(hollow),
        pytest.warns(pb.PrepbenchWarning),
        pytest.raises(InputError, match="Load the checkpoint"),
    ):
        hollow(PROMPTS)
    shell.load_state_dict(model.state_dict())
    shell.bfloat16().float()  # rounded weights are the same ones
    with loaded.attached(shell), pytest.warns(pb.PrepbenchWarning):
        assert shell.generate(PROMPTS, max_new_tokens=2).shape == (2, 7)


def test_a_graph_of_all_steps_runs_in_a_shell(model: Any, compiled: Any) -> None:
    shell = type(model)(model.config).eval()
    torch.testing.assert_close(ran(compiled, shell, PROMPTS).logits, model(PROMPTS).logits)


@pytest.mark.stress
def test_an_adapter_that_was_changed_since_is_said() -> None:
    from peft import LoraConfig

    own = make_model(layers=1)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    for name in ("one", "two"):
        own.add_adapter(config, name)
    own.eval().set_adapter("one")
    compiled = compile_for(own, EAGER)["eager"]
    ran(compiled, own, PROMPTS)
    own.set_adapter("two")
    expected = own(PROMPTS).logits
    message = "it uses the adapter two, and was compiled with one"
    with compiled.attached(own), pytest.warns(pb.PrepbenchWarning, match=message):
        assert torch.equal(own(PROMPTS).logits, expected)
    with compiled.attached(own, strict=True), pytest.raises(InputError, match=message):
        own.generate(PROMPTS, max_new_tokens=2)


def test_a_wrapper_of_peft_runs_compiled_like_the_model_inside() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    wrapper = get_peft_model(make_model(layers=1), config).eval()
    inside = wrapper.get_base_model()
    expected = wrapper.generate(input_ids=PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    loss = wrapper(input_ids=PROMPTS, labels=PROMPTS).loss
    compiled, calls = compile_for(inside, EAGER)["eager"], []
    run = compiled._runtime.run
    compiled._runtime.run = lambda leaves: (calls.append(len(leaves)), run(leaves))[1]  # type: ignore[method-assign]
    for given in (wrapper, inside):
        calls.clear()
        with compiled.attached(given, strict=True):
            made = wrapper.generate(input_ids=PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
            assert len(calls) == 4
            torch.testing.assert_close(wrapper(input_ids=PROMPTS, labels=PROMPTS).loss, loss)
            assert len(calls) == 5
        assert torch.equal(made, expected)
    with wrapper.disable_adapter(), compiled.attached(wrapper, strict=True), pytest.raises(InputError, match="adapter"):
        wrapper.generate(input_ids=PROMPTS, max_new_tokens=2)


@pytest.mark.stress
def test_what_was_compiled_with_a_wrapper_of_peft_is_refused() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    wrapper = get_peft_model(make_model(layers=1), config).eval()
    compiled = pb.compile_model(
        wrapper, tracing_inputs=make_samples(wrapper.get_base_model()), deployment_settings=pb.EagerDeployment()
    )
    with pytest.raises(InputError, match=r"Compile model.get_base_model\(\), which has the adapters"):
        compiled.attached(wrapper)
