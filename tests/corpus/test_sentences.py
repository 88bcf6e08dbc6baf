"""Borders of sentences in seventeen languages, in texts made of known sentences."""

import random
import re
from pathlib import Path

import pytest
import yaml

from detalbert.corpus.sentences import split_sentences
from detalbert.settings.yaml_files import read_yaml

LANGUAGES = yaml.safe_load(Path(__file__).with_name("sentences.yaml").read_text(encoding="utf-8"))
SEPARATORS = {"ja": "", "th": "\n", "zh": ""}


def ends_of(sentences):
    """The places behind sentences, counted without white space, but for the last."""
    ends = set()
    place = 0
    for sentence in sentences[:-1]:
        place += len("".join(sentence.split()))
        ends.add(place)
    return ends


@pytest.mark.parametrize("language", LANGUAGES)
def test_of_twenty_borders_at_most_one_is_missed_and_one_false(language):
    for seed in range(5):
        sentences = list(LANGUAGES[language])
        random.Random(seed).shuffle(sentences)
        text = SEPARATORS.get(language, " ").join(sentences)
        borders = ends_of(split_sentences(text, language=language))
        expected = ends_of(sentences)
        assert len(expected - borders) <= 1
        assert len(borders - expected) <= 1


def test_abbreviations_of_the_table_are_as_short_as_its_pattern_takes():
    table = read_yaml(Path("detalbert/corpus/abbreviations.yaml"))
    for words in table["inside"].values():
        without_sets = re.sub(r"\[[^]]*\]|#.*", "", words)
        assert max(map(len, re.findall(r"[^\W\d_]+", without_sets))) <= 6


def test_a_title_at_the_beginning_of_a_sentence_ends_none():
    sentences = ["He left.", "Mr. Smith came.", "J. R. Brown did not."]
    assert split_sentences(" ".join(sentences)) == sentences


def test_words_that_end_sentences_are_no_abbreviations():
    for text in (
        "Я сказал им. Они ушли.",
        "Он ест рис. Она пьёт чай.",
        "Les autres des 12. Ils ont.",
    ):
        assert len(split_sentences(text)) == 2


def test_marks_of_writing_direction_beside_an_end_mark_are_passed_over():
    sentences = ["هل عاد القبطان؟\u200f", "\u200fكتب (رسالة).\u200e", "لا!"]
    assert split_sentences(" ".join(sentences)) == sentences


def test_lines_are_sentences_of_a_text_without_marks():
    assert split_sentences("เรือออกจากท่า\nไม่มีใครรู้") == ["เรือออกจากท่า", "ไม่มีใครรู้"]


def test_a_point_behind_thai_letters_ends_no_sentence_of_any_language():
    text = "เรือจมใน พ.ศ. 2455 มีพื้นที่ 12 ตร.กม. และ ดร. สมชาย"
    for language in ("en", "th"):
        assert split_sentences(text, language=language) == [text]
