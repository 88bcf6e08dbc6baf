"""Tokenizers that are learned from text."""

import logging

from detalbert.corpus.vocabulary import END_OF_TEXT, find_tokenizer, train_bpe, train_byte_bpe
from detalbert.squad.encoding import named_tokenizer
from tests.fakes.text import text_config

SENTENCES = [
    "दिन अच्छा है। वह दीन है। दून एक घाटी है।",
    "мой мои чай чаи",
    "Tür Tur für fur",
    "The ship sails. It carries salt.",
]


def test_accents_and_vowel_signs_tell_words_apart():
    tokenizer = train_bpe(SENTENCES, 400)
    for alike in (["दिन", "दीन", "दून"], ["мой", "мои"], ["Tür", "Tur"], ["й", "и"], ["ü", "u"]):
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in alike]
        assert len(set(map(tuple, ids))) == len(alike)
        assert all(tokenizer.unk_token_id not in word for word in ids)


def test_a_pair_is_laid_out_as_alberts():
    tokenizer = train_bpe(SENTENCES, 400, positions=128)
    pair = tokenizer("The ship.", "SALT")
    tokens = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    first = tokens.index("[SEP]") + 1
    assert tokens[0] == "[CLS]"
    assert tokens[first:] == ["▁salt", "[SEP]"]
    assert pair["token_type_ids"] == [0] * first + [1] * 2
    assert tokenizer.model_max_length == 128


def test_tokens_of_bytes_decode_to_the_text():
    tokenizer = train_byte_bpe(SENTENCES, 400)
    assert tokenizer.convert_tokens_to_ids(END_OF_TEXT) == tokenizer.eos_token_id == 0
    for text in [*SENTENCES, " \t\r\n\x00 東京 \u2028 '' 12\n\n"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_vocabulary_smaller_than_asked_is_logged(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES))
    config = text_config(path, tmp_path, tokenizer=None, vocab_size=900, validation_fraction=0.0)

    folder = find_tokenizer(config, positions=128)

    size = len(named_tokenizer(folder))
    assert size < 900
    line = f"data.vocab_size: the text has words for {size} tokens of 900 only"
    assert caplog.messages == [line]
    assert find_tokenizer(config, positions=128) == folder  # found, so without another line
    assert caplog.messages == [line]
