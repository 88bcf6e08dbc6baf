"""Values of a config before they are checked. Imports nothing: YAML may be missing in an image."""

from typing import Any

Config = dict[str, Any]  # a mapping of YAML: what a schema or a dataclass has not checked yet
