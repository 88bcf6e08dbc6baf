"""What a user pastes from cluster/ways.md: its YAML, the webhook beside it."""

import json
import re

import yaml
from determined.common.api import bindings

from cluster.configs.merge import merge
from tests.cluster.planted import checked, experiment, findings, master
from tests.conftest import ROOT

PAGE = (ROOT / "cluster" / "ways.md").read_text()
SAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_every_sample_is_right(tmp_path):
    assert len(SAMPLES) == 4
    for sample in SAMPLES:
        if "schedule" in sample.get("retention_policy", {}):
            assert findings(tmp_path, cluster={**master(), **sample}) == []
        else:
            assert findings(tmp_path, merge(sample, experiment("smoke.yaml"))) == []


def test_the_webhook_is_what_the_master_takes_and_the_sample_names_it():
    file = ROOT / "cluster" / "webhook.json"
    webhook = json.loads(file.read_text())

    parsed = bindings.v1Webhook.from_json(webhook)
    assert parsed.to_json(omit_unset=True) == webhook
    assert parsed.mode is bindings.v1WebhookMode.SPECIFIC

    # In place of an experiment, the checker knows it for what it is.
    url, triggers = checked(file)
    assert url.key == "url"
    assert triggers.key == "triggers"
    assert triggers.warning
    assert "a webhook, not an experiment" in triggers.detail

    (sample,) = [sample for sample in SAMPLES if "integrations" in sample]
    assert sample["integrations"]["webhooks"]["webhook_name"] == [webhook["name"]]
