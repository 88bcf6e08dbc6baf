"""Bringing the package onto a Determined cluster: configs of masters, and a check of them all."""
