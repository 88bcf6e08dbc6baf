"""Token shards of a language model: the very text; what is refused; an own tokenizer."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from detalbert.corpus.read import Shards
from detalbert.corpus.write import write_shards
from detalbert.errors import UserError
from detalbert.squad.encoding import named_tokenizer
from lm.corpus import DocumentKind, load_tokenizer
from lm.data import LmText
from lm.hparams import LmHParams
from tests.corpus.documents import byte_tokenizer, documents_config, read_back, write, write_lines
from tests.fakes.text import TOKENIZER, contexts
from tests.fakes.text import write as write_examples

TEXTS = contexts(300)


def read_shards(shards, folder):
    return Shards(str(shards), "train", documents_config("generated", folder))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The shards of TEXTS."""
    folder = tmp_path_factory.mktemp("made")
    return write(write_lines(folder / "a.jsonl", TEXTS), folder, shard_mib=0.01)


def test_validation_documents_of_their_own_are_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("Train.")
    (tmp_path / "b.txt").write_text("Held out.")
    shards = write(tmp_path / "a.txt", tmp_path, validation_documents=str(tmp_path / "b.txt"))
    assert read_back(shards, "train") == ["Train."]
    assert read_back(shards, "validation") == ["Held out."]


def test_a_document_is_what_the_tokenizers_call_gives_and_its_end():
    """Of a tokenizer that begins a text with a token."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.eos_token} $A", special_tokens=[(tokenizer.eos_token, end)]
    )
    columns = DocumentKind(tokenizer).tokenize(TEXTS)
    rows = [[*tokenizer(text)["input_ids"], end] for text in TEXTS]
    assert columns["tokens"].tolist() == [*itertools.chain(*rows)]
    assert columns["document_ptr"].tolist() == [*map(len, rows)]


def test_ids_beyond_two_bytes(tmp_path):
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.add_tokens([f"<{number}>" for number in range(1 << 16)])
    text = tmp_path / "a.txt"
    text.write_text("Some<65535>")
    config = documents_config(text, tmp_path, validation_fraction=0.0)
    shards = Path(write_shards(config, DocumentKind(tokenizer)))
    tokens = read_shards(shards, tmp_path).columns(0)["tokens"]
    assert tokens.dtype == np.uint32
    assert tokens[-2] == len(tokenizer) - 1
    assert tokenizer.decode(tokens[:-1].tolist()) == "Some<65535>"


def load_text(values, length):
    return LmText.load(
        values, LmHParams(model_config={"model_type": "gpt2"}, max_seq_length=length)
    )


def own_copy(folder):
    """A folder with the byte-level tokenizer."""
    byte_tokenizer().save_pretrained(folder / "same")
    return str(folder / "same")


def test_the_mean_bytes_of_a_token_are_those_of_text(shards):
    """The end of a document is a token, too, and has none."""
    texts = read_back(shards, "train")
    tokens = sum(len(byte_tokenizer()(text)["input_ids"]) for text in texts)
    average = sum(len(text.encode()) for text in texts) / tokens
    train = load_text({"shards": str(shards)}, 8).train
    assert train.average_bytes() == pytest.approx([average])


def test_shards_of_others_are_refused(shards, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("A line. Another.")
    learn = documents_config(text, tmp_path, tokenizer=None, vocab_size=300)
    other = tmp_path / "other"
    load_tokenizer(learn, named_tokenizer).save_pretrained(other)
    examples = write_examples(text, tmp_path)
    data = {"shards": str(shards), "tokenizer": own_copy(tmp_path)}

    with pytest.raises(UserError, match="tokenizer: .*other' is not that of the sh"):
        load_text({**data, "tokenizer": str(other)}, 32)
    with pytest.raises(UserError, match="data.tokenizer: .* has no eos_token"):
        load_text({**data, "tokenizer": TOKENIZER}, 32)
    with pytest.raises(UserError, match="data.shards: .*: holds examples, and documents are"):
        load_text({**data, "shards": str(examples)}, 32)

    config = documents_config(text, tmp_path, tokenizer=data["tokenizer"])
    with pytest.raises(UserError, match="another text, tokenizer or length"):
        write_shards(config, DocumentKind(byte_tokenizer()), str(shards))
    # Nothing is held out of little text.
    with pytest.raises(UserError, match="data.validation_documents: 0 tokens .*or raise "):
        load_text(vars(config), 3)
