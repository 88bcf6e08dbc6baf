"""Texts as the master's Go libraries parse them: patterns, durations, schedules, URLs."""

import re

from cluster import rules
from cluster.schema import load_schema

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
        fault = rules.pattern(pattern) or ""
        assert pattern in ("b)+", "(?:a") or "does not compile" not in fault, pattern
    for pattern in (*FAILS.split(), "(" * 1001):
        assert "does not compile" in (rules.pattern(pattern) or ""), pattern


def fits(name: str, text: str) -> bool:
    """Whether a text fits the pattern of a definition in the master's schema."""
    return bool(re.search(load_schema("master")["definitions"][name]["pattern"], text))


def test_durations() -> None:
    good = ["20m", "1h30m", "1.5h", ".5m", "1.s", "+3s", "0", "-5m", "1500ms", "2h45m0s", "1µs"]
    assert [text for text in good if not fits("duration", text)] == []
    bad = ["", "10", "1d", "20 minutes", "0.5 h", "m", "-", "1e3s", ".s"]
    assert [text for text in bad if fits("duration", text)] == []


def test_schedules() -> None:
    good = ["60m", "0 5 * * *", "*/5 * * * *", "@daily", "@every 1h", "0 5 * * MON-FRI"]
    for text in [*good, "TZ=UTC 0 5 1,15 jan *", "0-30/10 ? * * 0", "05 5 * * *"]:
        assert rules.schedule(text) is None, text
    bad = ["daily", "61 * * * *", "0 5 * * 7", "0 5 * *", "@every 1d", "5-1 * * * *", "*/0 * * * *"]
    for text in [*bad, "0 5 0 * *", "0 5 * 13 *", "- * * * *"]:
        assert rules.schedule(text), text


def test_what_goes_into_a_url() -> None:
    assert fits("userinfo", "Aa0-._~!$&'()*+,;=:@")
    for char in '/#%?{}[]<>"\\^`| é':
        assert not fits("userinfo", f"pass{char}word"), char
    url = load_schema("master")["definitions"]["provider"]["properties"]["master_url"]["pattern"]
    for text in ("http://10.0.0.5:8080", "https://local-ipv4:8443", "http://10.0.0.5", ""):
        assert re.search(url, text), text
    for text in ("10.0.0.5:8080", "ftp://a", "http://a/", "http://a:8080/det"):
        assert not re.search(url, text), text
