"""Schedules and durations as the master's Go libraries parse them."""

import re

from cluster import rules
from cluster.schema import load_schema


def test_schedules():
    good = ["60m", "0 5 * * *", "*/5 * * * *", "@daily", "@every 1h", "0 5 * * MON-FRI"]
    for text in [*good, "TZ=UTC 0 5 1,15 jan *", "0-30/10 ? * * 0", "05 5 * * *"]:
        assert rules.schedule(text) is None, text
    bad = ["daily", "61 * * * *", "0 5 * * 7", "0 5 * *", "@every 1d", "5-1 * * * *", "*/0 * * * *"]
    for text in [*bad, "0 5 0 * *", "0 5 * 13 *", "- * * * *"]:
        assert rules.schedule(text), text


def test_durations():
    fits = re.compile(load_schema("master")["definitions"]["duration"]["pattern"]).search
    good = ["20m", "1h30m", "1.5h", ".5m", "1.s", "+3s", "0", "-5m", "1500ms", "2h45m0s", "1µs"]
    assert [text for text in good if not fits(text)] == []
    bad = ["", "10", "1d", "20 minutes", "0.5 h", "m", "-", "1e3s", ".s"]
    assert [text for text in bad if fits(text)] == []
