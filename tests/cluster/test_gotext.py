"""What Go's libraries read of a text: patterns, durations, schedules, URLs, YAML."""

import pathlib

import pytest

from cluster import gotext, goyaml
from detalbert.errors import UserError

# As Go's regexp.Compile (1.22) says: compiles, or does not.
COMPILES = r"""
.*CUDA|a{2}?|[]a]|[^]]|(?i)x|(?P<n>a)(?<m>b)|(?:a|b)+|a{,3}|\pL\p{Greek}\P{Lu}|\12|\x{41}|\x41
[[:alpha:]]|[[:^digit:]x-]|\Qa*b\E+|^*|(?i:a)b|(?-s)a|é+|\_\.\-|[\d-z]|err\z|\Aab\b|()|x|}|]|(?s-i:.)
""".replace("\n", "").split("|")  # fmt: skip
FAILS = r"""
*CUDA a|+ (?i)* (a a) [a [] [z-a] [a-\d] [[:foo:]] ^(?!.*INFO)x (?<=a)b (?>a) (?x)a (rank)\1
error\Z \8 \ a++b a** a{2}{3} a{1001} a{3,2} (a{500}){500} (?P<n-m>a) \x{110000} \pQ
"""


def test_patterns() -> None:
    for pattern in COMPILES:
        assert pattern in ("b)+", "(?:a") or gotext.regexp_problem(pattern) is None, pattern
    for pattern in (*FAILS.split(), "(" * 1001):
        assert gotext.regexp_problem(pattern), pattern


def test_durations() -> None:
    seconds = {"20m": 1200, "1h30m": 5400, "1.5h": 5400, ".5m": 30, "1.s": 1, "+3s": 3, "0": 0}
    seconds |= {"-5m": -300, "1500ms": 1.5, "2h45m0s": 9900, "1us": 1e-6, "1µs": 1e-6}
    for text, value in seconds.items():
        assert gotext.duration(text) == value * 10**9, text
    for text in ("", "10", "1d", "20 minutes", "0.5 h", "m", "-", "1e3s", ".s", "9999999h"):
        assert gotext.duration(text) is None, text


def test_schedules() -> None:
    good = ["60m", "0 5 * * *", "*/5 * * * *", "@daily", "@every 1h", "0 5 * * MON-FRI"]
    for text in [*good, "TZ=UTC 0 5 1,15 jan *", "0-30/10 ? * * 0"]:
        assert gotext.schedule_problem(text) is None, text
    bad = ["daily", "61 * * * *", "0 5 * * 7", "0 5 * *", "@every 1d", "5-1 * * * *", "*/0 * * * *"]
    for text in bad:
        assert gotext.schedule_problem(text), text


def test_urls() -> None:
    for text in ("http://10.0.0.5:8080", "https://local-ipv4:8443", "http://10.0.0.5", ""):
        assert gotext.master_url_problem(text) is None, text
    for text in ("10.0.0.5:8080", "ftp://a", "http://a/", "http://a:8080/det", "http://a:b"):
        assert gotext.master_url_problem(text), text
    assert gotext.userinfo_problem("Aa0-._~!$&'()*+,;=:@") is None
    for char in '/#%?{}[]<>"\\^`| é':
        assert gotext.userinfo_problem(f"pass{char}word"), char


# As a real 0.38.1 master takes them under a key that wants text.
PLAIN = {
    "5e-5": 5e-5, "048": 48.0, "010": 8, "0x1F": 31, "0b11": 3, "0o17": 15, "1_000": 1000, "+1": 1,
    ".5": 0.5, "-012": -10, "685_230.15": 685230.15, "y": True, "Off": False, "no": False,
    "2024-01-01": "2024-01-01", "1:30": "1:30", "0x": "0x", "1e": "1e", "nUll": "nUll",
    "~": None, "NULL": None, "tRue": "tRue", ".": ".", "'5'": "5",
}  # fmt: skip


def test_plain_values(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    for text, value in PLAIN.items():
        path.write_text(f"\ufeffkey: {text}\n1: x\ny: y\n", encoding="utf-8")
        loaded = goyaml.load(path)
        assert loaded == {"key": value, "1": "x", "true": True}  # keys are text, in JSON
        assert type(loaded["key"]) is type(value), text
    path.write_text("a: &a {x: 1, z: 2}\nb:\n  <<: *a\n  x: 3\n")
    assert goyaml.load(path)["b"] == {"x": 3, "z": 2}


def test_files_that_are_no_config(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    for text, words in {
        None: "cannot read it",
        "a: 1\nb: {c: 1, c: 2}\n": "line 2: 'c' is there twice",
        "a: .inf\n": "no number in JSON",
        "a:\n\tb: 1\n": "not YAML (line 2)",
        "a: *b\n": "not YAML (line 1)",
        "a: !!python/object/apply:int [2]\n": "not YAML (line 1)",
        "- a\n": "not a config",
        "": "not a config",
    }.items():
        if text is not None:
            path.write_text(text)
        with pytest.raises(UserError) as caught:
            goyaml.load(path)
        assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)
