"""The reader of YAML files: values as the master takes them, and what it refuses in one line."""

import pathlib

import pytest
import yaml

from detalbert.errors import UserError
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.yaml_files import dump_yaml, parse_yaml, read_yaml

# As a real 0.38.1 master takes them under a key that wants text.
PLAIN = {
    "5e-5": 5e-5, "048": 48.0, "010": 8, "0x1F": 31, "0b11": 3, "0o17": 15, "1_000": 1000, "+1": 1,
    ".5": 0.5, "-012": -10, "685_230.15": 685230.15, "y": True, "Off": False, "no": False,
    "2024-01-01": "2024-01-01", "2001-99-99": "2001-99-99", "1:30": "1:30", "0x": "0x", "1e": "1e",
    "~": None, "NULL": None, "nUll": "nUll", "tRue": "tRue", ".": ".", "'5'": "5",
    "97565576e708": "97565576e708", "-1e999": "-1e999",
    "9" * 400: "9" * 400, "9" * 5000: "9" * 5000,
}  # fmt: skip


def test_plain_values(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    for text, value in PLAIN.items():
        path.write_text(f"\ufeffkey: {text}\n1: x\ny: y\n", encoding="utf-8")
        loaded = read_yaml(path)
        assert loaded == {"key": value, "1": "x", "true": True}  # keys are text, in JSON
        assert type(loaded["key"]) is type(value), text
    assert parse_yaml("a: &a {x: 1, z: 2}\nb:\n  <<: *a\n  x: 3\n")["b"] == {"x": 3, "z": 2}


def test_what_is_written_is_read_as_it_was() -> None:
    texts = [*PLAIN, "é: ー", "a\nb", ".inf", "null"]
    value = {"texts": texts, "numbers": [5e-5, 3, True, None], **dict.fromkeys(texts, "n")}
    assert parse_yaml(dump_yaml(value)) == yaml.safe_load(dump_yaml(value)) == value


BOMB = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n"
MERGES += "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))
REFUSED = {
    **dict.fromkeys((BOMB, MERGES, "a: &a [*a]\n"), "more than 50,000 values, aliases counted"),
    "a: 1\nb: {c: 1, c: 2}\n": "line 2: 'c' is there twice, on line 2 too",
    "true: 1\nb: 2\nyes: 3\n": "line 3: 'true' is there twice, on line 1 too",
    "a:\n\tb: 1\n": "not YAML (line 2)",
    "a: *b\n": "not YAML (line 1)",
    "a: !!python/object/apply:int [2]\n": "not YAML (line 1)",
    "a: [{b: .inf}]\n": "line 1: .inf is no number in JSON",
    "a: !!bool x\n": "line 1: x is no bool in JSON",
    "a: !!int x\n": "line 1: x is no number in JSON",
    "a: !!timestamp abc\n": "not YAML (line 1)",
    "a: !!timestamp 2001-99-99\n": "not YAML (line 1)",
    "- a\n": "not a config",
    "": "not a config",
}


def test_files_that_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    for text, words in {None: "cannot read it", **REFUSED}.items():
        if text is not None:
            path.write_text(text)
        with pytest.raises(UserError) as caught:
            read_yaml(path)
        assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)
    with pytest.raises(UserError, match="--set name=!!bool x: '!!bool x' is not a YAML value"):
        apply_overrides({}, ["name=!!bool x"])
    with pytest.raises(UserError, match="is not a YAML value$") as caught:
        apply_overrides({}, [f"name=!!bool {'9' * 400}"])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("deep", ["[", "{a: ", "- ", "? "])
def test_a_file_of_100_000_levels_is_refused_in_one_line(deep: str) -> None:
    with pytest.raises(UserError, match="hundreds of levels deep; nest less"):
        parse_yaml(deep * 100_000)
    assert parse_yaml("[" * 100 + "]" * 100)
