"""What a user pastes from cluster/ways.md: its YAML, the webhook beside it."""

import json
import re

import yaml
from determined.common.api import bindings

from tests.cluster.planted import experiment, problems
from tests.conftest import ROOT

PAGE = (ROOT / "cluster" / "ways.md").read_text()
SAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_every_sample_of_an_experiment_is_right():
    # One is of a master.
    samples = [row for row in SAMPLES if "schedule" not in row.get("retention_policy", {})]
    assert len(samples) == 3
    for sample in samples:
        assert problems(experiment("smoke.yaml") | sample) == {}


def test_the_webhook_is_what_the_master_takes_and_the_sample_names_it():
    webhook = json.loads((ROOT / "cluster" / "webhook.json").read_text())
    parsed = bindings.v1Webhook.from_json(webhook)
    assert parsed.to_json(omit_unset=True) == webhook
    assert parsed.mode is bindings.v1WebhookMode.SPECIFIC

    (sample,) = [sample for sample in SAMPLES if "integrations" in sample]
    assert sample["integrations"]["webhooks"]["webhook_name"] == [webhook["name"]]
