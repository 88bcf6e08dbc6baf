"""The reader of YAML files: values as the master takes them, and what it refuses in one line."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.settings.yaml_files import LARGEST, parse_yaml, read_yaml

# Plain values, and as JSON what a real 0.38.1 master takes them for under a key that wants text.
PLAIN = """5e-5 5e-5|1E3 1e3|048 48.0|0x1F 31|0b11 3|1_000 1000|+1 1|.5 0.5|no false
685_230.15 685230.15|Off false|1:30 "1:30"|2024-01-01 "2024-01-01"|2001-99-99 "2001-99-99"|0x "0x"
1e "1e"|~ null|NULL null|nUll "nUll"|tRue "tRue"|. "."|'5' "5"|'5e-5' "5e-5\""""


def test_plain_values(tmp_path):
    path = tmp_path / "config.yaml"
    for pair in PLAIN.replace("\n", "|").split("|"):
        text, value = pair.split(" ")
        path.write_text(f"\ufeffkey: {text}\n1: x\ntrue: y\n", encoding="utf-8")
        expected = {"key": json.loads(value), "1": "x", "true": "y"}  # keys are text, in JSON
        assert json.dumps(read_yaml(path)) == json.dumps(expected)
    assert parse_yaml("a: &a {x: 1, z: 2}\nb:\n  <<: *a\n  x: 3\n")["b"] == {"x": 3, "z": 2}


# PyYAML writes some line ends of Unicode as they are, and 5e-5, a text to it, without quotes.
LETTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Nd"])
TEXTS = st.text(LETTERS, max_size=8) | st.sampled_from(["é: ー", "a\nb", ".inf", "null", "<<", "5"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_what_pyyaml_writes_is_read_as_it_was(value):
    assert parse_yaml(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)) == value


REFUSED = {
    "a: 1\nb: {c: 1, c: 2}\n": "cannot read it: line 2: 'c' is there twice",
    "a:\n\tb: 1\n": "cannot read it: line 2: ",
    "a: *b\n": "cannot read it: line 1: ",
    "a: !!python/object/apply:int [2]\n": "cannot read it: line 1: ",
    "a: !!bool x\n": "cannot read it: ",
    "a: " + "9" * 5000: "cannot read it: ",
    "a: \x00\n": "cannot read it: ",
    'a: "\\ud83d\\ude00"\n': "cannot read it: 'utf-8' codec can't encode",
    "a: 010\n": "cannot read it: line 1: 010 is octal to some programs",
    "a: -012\n": "cannot read it: line 1: ",
    "[" * 5_000: "cannot read it: ",
    "- a\n": "not a config",
    "": "not a config",
    "a: " + "x" * LARGEST: "more than 1,000,000 characters",
    "\udcff": "cannot read it: 'utf-8' codec",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:20]))
def test_a_file_that_is_refused_is_one_line_with_its_name(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: {REFUSED[text]}")
    assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(UserError, match=f"^{path}: cannot read it: No such file"):
        read_yaml(path)
