"""Tools for deployment on a Determined cluster: master configs, and a check of all configs."""
