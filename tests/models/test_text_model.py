"""A language model in the place of a video model: its prompt, and a family whose norms stand elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_models import tokenizer
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from wq_cli.bench.text_model import TextModel
from wq_cli.config import Quantization
from wq_cli.recorded import Recording

TEXT = "a dog and a cat move left when the dog does what is there in the video ?"


@pytest.fixture(scope="module")
def model() -> TextModel:
    torch.manual_seed(0)
    words = tokenizer()
    words.bos_token = "<|im_start|>"
    words.add_tokens(["Question", "Answer", ":"])
    config = Gemma3TextConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, sliding_window=64,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    return TextModel(Gemma3ForCausalLM(config).eval(), SimpleNamespace(tokenizer=words))


def test_a_base_model_gets_text_question_and_the_beginning_of_the_answer(model: TextModel) -> None:
    prompt = model.prompt("is there a dog ?\nyes", model.features(TEXT, 16))
    words = model.processor.tokenizer
    expected = [*words("<|im_start|>")["input_ids"], *words(TEXT)["input_ids"][:16]]
    expected += words("Question: is there a dog ? Answer: yes")["input_ids"]
    torch.testing.assert_close(prompt.embeds, model.embed(torch.tensor(expected)))
    assert prompt.visual_mask.nonzero().flatten().tolist() == list(range(1, 17))


def test_sensitivity_is_of_the_stream_with_attention_added(model: TextModel) -> None:
    """Gemma 3 norms what attention adds: eq 9 from the hidden states of transformers and what that norm gives."""
    prompt = model.prompt("is there a dog ?\nyes", model.features(TEXT, 16))
    found = Recording(model, prompt).sensitivity
    added: list[torch.Tensor] = []
    hooks = [
        layer.post_attention_layernorm.register_forward_hook(lambda module, args, out: added.append(out))
        for layer in model.decoder.layers
    ]
    with torch.inference_mode():
        streams = model.decoder(inputs_embeds=prompt.embeds[None, : prompt.visual_end], output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    for s, before, attended in zip(found, streams.hidden_states, added, strict=False):
        cosine = torch.nn.functional.cosine_similarity(before.double(), (before + attended).double(), dim=-1)
        assert s == pytest.approx(float(cosine.mean()), abs=1e-5)


def test_a_packed_cache_of_such_a_model_is_near_full_precision(model: TextModel) -> None:
    prompt = model.prompt("is there a dog ?\nyes", model.features(TEXT, 16))
    recording = Recording(model, prompt)
    full, packed = (recording.sealed(prompt, Quantization(name, window=8), 4) for name in ("fp16", "rtn8"))
    assert packed.cache.visual_bits < full.cache.visual_bits == 32
    torch.testing.assert_close(packed.logits, full.logits, atol=0.05, rtol=0.05)
    with torch.inference_mode():
        plain = model.model(inputs_embeds=prompt.embeds[None]).logits[:, -1]
    torch.testing.assert_close(full.logits, plain.float(), atol=1e-3, rtol=1e-3)
