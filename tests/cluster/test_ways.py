"""What a user pastes from cluster/ways.md: its commands, its YAML, the webhook beside it."""

import argparse
import json
import re
import shlex
import shutil

import yaml
from determined import cli
from determined.cli.cli import all_args_description
from determined.common.api import bindings

from cluster.merge import merge
from cluster.schema import placeholders
from tests.cluster.planted import experiment, findings, master
from tests.conftest import ROOT

PAGE = (ROOT / "cluster" / "ways.md").read_text()
SAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_every_command_is_one_that_det_knows(tmp_path, monkeypatch):
    """By the parser of `det` itself."""
    lines = re.findall(r"^(?:\$ )?(det .*)$|`(det [^`]*[0-9][^`]*)`", PAGE, re.MULTILINE)
    commands = [(line or inline).partition(" > ")[0] for line, inline in lines]
    assert len(commands) > 12
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "fork.yaml").touch()
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    cli.add_args(parser, all_args_description)
    for command in commands:
        assert parser.parse_args(shlex.split(command, comments=True)[1:]).func, command


def test_every_sample_is_right(tmp_path):
    assert len(SAMPLES) == 4
    for sample in SAMPLES:
        if "schedule" in sample.get("retention_policy", {}):
            assert findings(tmp_path, cluster={**master(), **sample}) == []
        else:
            assert findings(tmp_path, merge(sample, experiment("smoke.yaml"))) == []


def test_the_webhook_is_what_the_master_takes_and_the_sample_names_it():
    wanted = json.loads((ROOT / "cluster" / "webhook.json").read_text())
    hook = bindings.v1Webhook.from_json(wanted)
    assert hook.to_json(omit_unset=True) == wanted
    assert hook.mode is bindings.v1WebhookMode.SPECIFIC
    assert [finding.key for finding in placeholders("webhook.json", "", wanted)] == ["url"]
    hooks = [sample["integrations"]["webhooks"] for sample in SAMPLES if "integrations" in sample]
    assert [hook["webhook_name"] for hook in hooks] == [[wanted["name"]]]
