"""Recorded capacity: how a file is read, and that its outages are waited for."""

import dataclasses
import json

import numpy as np
import pytest

from detalbert.errors import UserError
from reports.market import Trace, load_trace
from reports.simulate import Job, simulate


def test_the_outages_of_a_trace_are_waited_for():
    """Four machines are there for 6 h, gone for 4 h: no run that meets the outage is under 4 h."""
    trace = Trace(np.array([0.0, 6 * 3600]), np.array([4, 0]), 36_000.0)
    job = Job(work_seconds=2850, period_seconds=300, machines=4, price=7.344)
    found = simulate(job, trace, 2000, 0)
    met = found["waiting h"] > 0
    assert 0.4 < met.mean() < 0.6 and found["waiting h"].max() <= 4
    assert found["hours"][~met].max() < 1 < found["hours"][met].mean()
    hit = found["reclaims"] == 1
    whole = found["waiting h"][hit].to_numpy()  # or what is left of it after the boot
    assert (whole <= 4 - 25 / 3600 + 1e-9).all() and whole.min() > 4 - 325 / 3600 - 1e-9
    with pytest.raises(UserError, match="4 machines at most, the job needs 8"):
        simulate(dataclasses.replace(job, machines=8), trace, 5, 0)


def test_a_trace_file_is_read_and_its_faults_named(tmp_path):
    path, other = tmp_path / "trace.csv", tmp_path / "trace.json"
    path.write_text("hours,machines\n0,8\n2,7\n2.5,8\n10,0\n")
    trace = load_trace(path)
    assert list(trace.seconds) == [0, 7200, 9000] and trace.length == 36_000
    assert list(trace.machines) == [8, 7, 8]
    alike = trace.alike()
    assert alike.hourly == pytest.approx(1 / 79.5) and alike.wait_seconds == pytest.approx(1800)
    other.write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": [4, 4, 0, 4]}))
    trace = load_trace(other)
    assert list(trace.seconds) == [0, 1800, 3600, 5400] and trace.length == 7200
    for text, said in [
        ("hours,machines\n0,8\nx,7\n", "numbers in the columns hours and machines"),
        ("hours,event\n0,8\n", "numbers in the columns hours and machines"),
        ("hours,machines\n0,8\n2,7\n1,8\n", "row 3"),
        ("hours,machines\n1,8\n2,7\n", "row 1"),
        ("hours,machines\n0,8\n1,7.5\n2,1\n", "row 2"),
        ("hours,machines\n0,8\n1,-1\n2,1\n", "row 2"),
        ("hours,machines\n0,8\n", "two rows or more"),
        ("hours,machines\n0,0\n1,8\n", "machines in one of them"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            load_trace(path)
