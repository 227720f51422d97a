"""``compiled.attached(model)``: the generation of ``transformers`` on a compiled forward."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from tests.compile.generate.generating import PROMPTS, TARGETS, compile_for, make_model, make_samples

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9, "top_k": 8},
    "beams": {"do_sample": False, "num_beams": 3},
    "mask": {"do_sample": False, "attention_mask": torch.ones(2, 5, dtype=torch.long)},
}


class Calls:
    """Counts the calls of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.count = 0
        self.remove = module.register_forward_hook(self).remove

    def __call__(self, *_: Any) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


@pytest.fixture(scope="module")
def compiled(model: Any) -> dict[str, pb.CompiledModel]:
    return compile_for(model)


def tokens(model: Any, prompts: torch.Tensor = PROMPTS, **options: Any) -> torch.Tensor:
    torch.manual_seed(11)
    found: torch.Tensor = model.generate(prompts, **{"max_new_tokens": 16, "min_new_tokens": 16, **options})
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TARGETS)
def test_generation_gives_the_tokens_of_eager(target: str, mode: str, model: Any, compiled: Any) -> None:
    expected = tokens(model, **MODES[mode])
    calls = Calls(compiled[target])
    with compiled[target].attached(model):
        found = tokens(model, **MODES[mode])
    calls.remove()
    assert calls.count == 16
    assert found.shape == (2, 21)
    assert torch.equal(found, expected)
    assert "forward" not in vars(model)


def test_a_loaded_model_generates_too(model: Any, compiled: Any, tmp_path: Path) -> None:
    from transformers import DynamicCache

    compiled["ONNX Runtime"].save(tmp_path / "model")
    expected = tokens(model)
    with pb.load_compiled(tmp_path / "model").attached(model):
        assert torch.equal(tokens(model), expected)
        cache = DynamicCache()
        assert torch.equal(tokens(model, past_key_values=cache), expected)
        beams = tokens(model, num_beams=2, do_sample=False)
    assert torch.equal(beams, tokens(model, num_beams=2, do_sample=False))
    assert cache.get_seq_length() == 20


def test_a_cache_that_was_given_is_filled(model: Any, compiled: Any) -> None:
    from transformers import DynamicCache

    caches = [DynamicCache(config=model.config) for _ in range(2)]
    begun = tokens(model, past_key_values=caches[0])
    with compiled["eager"].attached(model):
        assert torch.equal(tokens(model, past_key_values=caches[1]), begun)
        assert caches[1].get_seq_length() == caches[0].get_seq_length() == 20
        torch.testing.assert_close(caches[1].layers[1].keys, caches[0].layers[1].keys)
        again = tokens(model, begun, past_key_values=caches[1])
    assert torch.equal(again, tokens(model, begun, past_key_values=caches[0]))


def test_threads_that_begin_inside_run_compiled_and_others_do_not(model: Any, compiled: Any) -> None:
    from transformers import TextIteratorStreamer

    class Words:
        def decode(self, ids: Any, **_: Any) -> str:
            return "".join(f"{int(one)} " for one in ids)

    expected = tokens(model, PROMPTS[:1])
    calls = Calls(compiled["eager"])
    inside, done, found = threading.Event(), threading.Event(), []
    before = threading.Thread(
        target=lambda: (inside.wait(10), found.append(tokens(model, PROMPTS[:1])), done.set()), name="older"
    )
    before.start()
    with compiled["eager"].attached(model):
        with pytest.warns(pb.PrepbenchWarning, match="the thread 'older' is older than the block"):  # noqa: PT031
            assert inside.set() is None
            assert done.wait(20)
        assert calls.count == 0
        streamer = TextIteratorStreamer(Words(), skip_prompt=True, timeout=20)  # type: ignore[arg-type]
        generating = threading.Thread(target=tokens, args=(model, PROMPTS[:1]), kwargs={"streamer": streamer})
        generating.start()
        text = "".join(streamer)
        generating.join()
    before.join()
    calls.remove()
    assert calls.count == 16
    assert torch.equal(found[0], expected)
    assert text.split() == [str(int(token)) for token in expected[0, 5:]]


def test_blocks_overlap_and_end_in_any_order(model: Any, compiled: Any) -> None:
    own = vars(model).get("forward")
    outer, inner = compiled["eager"].attached(model), compiled["ONNX Runtime"].attached(model)
    counts = [Calls(compiled[name]) for name in ("eager", "ONNX Runtime")]
    outer.__enter__(), inner.__enter__()
    tokens(model)
    outer.__exit__(None, None, None)
    tokens(model)
    inner.__exit__(None, None, None)
    tokens(model)
    for count in counts:
        count.remove()
    assert [count.count for count in counts] == [0, 32]
    assert vars(model).get("forward") is own is None


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_the_model_is_as_before_after_an_error(raised: Any, model: Any, compiled: Any) -> None:
    def stop(*_: Any) -> None:
        raise raised("in a step")

    expected = tokens(model)
    hook = compiled["eager"].register_forward_hook(stop)
    with pytest.raises(raised, match="in a step"), compiled["eager"].attached(model):
        tokens(model)
    hook.remove()
    assert "forward" not in vars(model)
    assert torch.equal(tokens(model), expected)


def test_compiling_inside_of_a_block_compiles_the_model_itself(model: Any, compiled: Any) -> None:
    calls = Calls(compiled["eager"])
    with compiled["eager"].attached(model):
        program = pb.capture(model, [{"input_ids": PROMPTS, "use_cache": False}])
    calls.remove()
    assert calls.count == 0
    assert any("linear" in str(node.target) for node in program.program.graph.nodes)


def test_what_the_graph_cannot_do_is_said(model: Any, compiled: Any) -> None:
    padded = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}
    with compiled["eager"].attached(model):
        with pytest.raises(InputError, match="position_ids: the prompts are padded"):
            tokens(model, **padded)
        with pytest.raises(InputError, match="hands in a StaticCache, and the model was compiled with a DynamicCache"):
            tokens(model, cache_implementation="static")
    with pytest.raises(InputError, match=r"its forward took \(input_ids, attention_mask"):
        compiled["eager"].attached(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"model must be .*, a torch\.nn\.Module, got 3"):
        compiled["eager"].attached(3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_masks_and_tokens_of_fewer_bits_are_taken(dtype: torch.dtype, model: Any, compiled: Any) -> None:
    prompts = PROMPTS if dtype == torch.bool else PROMPTS.to(dtype)
    with compiled["eager"].attached(model):
        found = tokens(model, prompts, attention_mask=torch.ones(2, 5, dtype=dtype))
    assert torch.equal(found, tokens(model))


def test_a_first_step_without_a_cache_gets_an_empty_one(model: Any, compiled: Any) -> None:
    calls = Calls(compiled["eager"])
    with compiled["eager"].attached(model, strict=True), torch.no_grad():
        first = model(input_ids=PROMPTS, use_cache=True)
        new = first.logits[:, -1:].argmax(-1)
        second = model(input_ids=new, past_key_values=first.past_key_values).logits.argmax(-1)
        assert model(PROMPTS, use_cache=False).past_key_values is None
        found = tokens(model, use_cache=False)
    calls.remove()
    assert calls.count == 3 + 16
    assert torch.equal(found, tokens(model))
    assert torch.equal(torch.cat([new, second], 1), tokens(model, max_new_tokens=2, min_new_tokens=2)[:, -2:])


def test_a_graph_without_a_cache_generates_without_one() -> None:
    model = make_model(layers=1)
    samples = [{"input_ids": PROMPTS}, {"input_ids": PROMPTS[:1, :3].repeat(3, 1)}]
    plain = pb.compile_model(
        model, tracing_inputs=[{**s, "use_cache": False} for s in samples], deployment_settings=TARGETS["eager"]
    )
    with plain.attached(model):
        found = tokens(model, use_cache=False)
        with pytest.raises(InputError, match="the model was compiled without a cache"):
            tokens(model)
    assert torch.equal(found, tokens(model))


def test_padded_prompts_with_positions() -> None:
    model = make_model(layers=1)
    made = compile_for(model, {"eager": TARGETS["eager"]}, positions=True)["eager"]
    padded = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}
    expected = tokens(model, **padded), tokens(model)
    with made.attached(model):
        assert torch.equal(tokens(model, **padded), expected[0])
        assert torch.equal(tokens(model), expected[1])


@pytest.mark.stress
def test_prompt_lookup_needs_a_graph_with_the_logits_of_several_tokens(model: Any, compiled: Any) -> None:
    looked_up = {"prompt_lookup_num_tokens": 3}
    prompt, samples = PROMPTS[:1].repeat(1, 2), make_samples(model)
    expected = tokens(model, prompt, do_sample=False)
    made = {
        keep: pb.compile_model(
            model,
            tracing_inputs=[{**sample, **keep_options} for sample in samples],
            deployment_settings=TARGETS["eager"],
        )
        for keep, keep_options in {0: {"logits_to_keep": 0}, 1: {"logits_to_keep": 1}}.items()
    }
    for several in (compiled["eager"], made[0]):
        with several.attached(model):
            assert torch.equal(tokens(model, prompt, do_sample=False, **looked_up), expected)
    with made[1].attached(model), pytest.raises(InputError, match="tracing inputs without logits_to_keep="):
        tokens(model, prompt, do_sample=False, **looked_up)


def _encoder_decoder() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: Any = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    tokens: Any = {"decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens)).eval()


@pytest.mark.parametrize(
    ("make", "recorded", "asked", "told"),
    [
        (make_model, "static", None, "past_key_values: .* a StaticCache. Give cache_implementation='static', or"),
        (_encoder_decoder, None, "static", r"\.self_attention_cache: .* Leave out cache_implementation="),
        (_encoder_decoder, "static", None, r"\.self_attention_cache: .* Give cache_implementation='static', or"),
    ],
)
def test_another_kind_of_cache_is_refused_with_what_to_ask_for(make: Any, recorded: Any, asked: Any, told: str) -> None:
    model, prompts = make(), torch.randint(3, 10, (2, 6))
    with pb.record_inputs(model, distinct_shapes=True) as recording:
        model.generate(prompts, max_new_tokens=4, do_sample=False, cache_implementation=recorded)
    later = [one for one in recording if one.kwargs["past_key_values"].get_seq_length() > 0]
    compiled = pb.compile_model(model, tracing_inputs=later, deployment_settings=pb.EagerDeployment())
    model._cache = None
    with compiled.attached(model), pytest.raises(InputError, match=told):
        model.generate(prompts, max_new_tokens=4, do_sample=False, cache_implementation=asked)
