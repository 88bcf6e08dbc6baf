"""Print the JSON Schema of an experiment config with the keys of all workloads, for editors.

python -m detalbert.settings > experiment.json
"""

import json
from pkgutil import resolve_name

from detalbert.settings.experiment import EXPERIMENT
from detalbert.settings.sections import json_schema
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml
from workloads import TABLE


def editor_schema() -> Config:
    """Return Determined's schema with our sections: each has the keys of one of the workloads, and
    a value may be a range of a search.
    """
    parsers = [resolve_name(row.parsers) for row in TABLE]
    sections = {
        "data": [json_schema(row.data_class) for row in parsers],
        "hyperparameters": [json_schema(row.hyperparameters_class) for row in parsers],
    }
    schema = read_yaml(EXPERIMENT)
    for name, choices in sections.items():
        for choice in choices:
            for key, value in choice["properties"].items():
                choice["properties"][key] = {"anyOf": [value, {"$ref": "#/definitions/range"}]}
        schema["properties"][name] = {"anyOf": choices}
    return schema


if __name__ == "__main__":
    print(json.dumps(editor_schema(), indent=2))
