"""What Go's libraries read of a text: patterns, durations, schedules, URLs."""

from cluster import gotext

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
        assert pattern in ("b)+", "(?:a") or gotext.pattern_problem(pattern) is None, pattern
    for pattern in (*FAILS.split(), "(" * 1001):
        assert gotext.pattern_problem(pattern), pattern


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
