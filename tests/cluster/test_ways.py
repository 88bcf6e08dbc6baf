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
    wanted = json.loads((ROOT / "cluster" / "webhook.json").read_text())
    hook = bindings.v1Webhook.from_json(wanted)
    assert hook.to_json(omit_unset=True) == wanted
    assert hook.mode is bindings.v1WebhookMode.SPECIFIC
    said = checked(ROOT / "cluster" / "webhook.json")
    assert [finding.key for finding in said] == ["url", "triggers"]
    assert said[1].warning and "a webhook, not an experiment" in said[1].detail
    hooks = [sample["integrations"]["webhooks"] for sample in SAMPLES if "integrations" in sample]
    assert [hook["webhook_name"] for hook in hooks] == [[wanted["name"]]]
