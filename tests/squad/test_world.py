"""The generated world: its shape, its bytes, and what keeps its splits apart."""

import hashlib
import json
from functools import cache

import pytest

from detalbert.squad.relations import WORDS
from detalbert.squad.world import generate
from tests.fakes.questions import world_questions

SPLITS = {
    "train": "26a3caaae489164c765a82d0bb241de1c8405bd33464399919050f42f9946512",
    "validation": "7a7a19a8af513f516a36f9e27a07a0bea924e587faa392a5a011f9874faa1e36",
}


@cache
def asked(split: str) -> list[tuple[str, dict]]:
    return list(world_questions(split))


def answers(qa: dict) -> list[dict]:
    return qa["answers"] + qa.get("plausible_answers", [])


def names(split: str) -> set[str]:
    """Every capitalised word of answers and questions that is not an English word."""
    texts = []
    for _, qa in world_questions(split, paragraphs=200):
        texts += [answer["text"] for answer in answers(qa)]
        texts.append(qa["question"].partition(" ")[2].replace("?", ""))
    english = {word for words in WORDS.values() for word in words}
    words = {word for text in texts for word in text.split() if word[0].isupper()}
    return {word for word in words if word.lower() not in english}


@pytest.mark.parametrize("split", SPLITS)
def test_the_bytes_never_change_and_the_seed_matters(split: str) -> None:
    """Published numbers and cached windows belong to these bytes."""
    assert hashlib.sha256(json.dumps(generate(split)).encode()).hexdigest() == SPLITS[split]
    first, again, other = (json.dumps(generate(split, seed=n, paragraphs=20)) for n in (3, 3, 4))
    assert first == again != other


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split must be one of"):
        generate("test")


@pytest.mark.parametrize("split", SPLITS)
def test_official_shape(split: str) -> None:
    world = generate(split, paragraphs=50)
    assert world["version"] == "v2.0"
    assert len({article["title"] for article in world["data"]}) == len(world["data"]) == 5
    questions = [qa for _, qa in world_questions(split, paragraphs=50)]
    assert len({qa["id"] for qa in questions}) == len(questions) == 300
    for qa in questions:
        assert qa["is_impossible"] == (not qa["answers"]) == ("plausible_answers" in qa)


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_stands_at_its_offset_and_a_good_share_has_none(split: str) -> None:
    found = [(context, answer) for context, qa in asked(split) for answer in answers(qa)]
    for context, answer in found:
        assert context[answer["answer_start"] :].startswith(answer["text"])
    assert len(found) >= 600
    assert 0.28 < sum(qa["is_impossible"] for _, qa in asked(split)) / len(asked(split)) < 0.45
    assert (max(len(qa["answers"]) for _, qa in asked(split)) == 1) == (split == "train")


def test_the_splits_share_no_name_and_no_paragraph() -> None:
    train, validation = names("train"), names("validation")
    assert len(validation) > 500 and not train & validation
    train, validation = ({context for context, _ in asked(split)} for split in SPLITS)
    assert not train & validation
