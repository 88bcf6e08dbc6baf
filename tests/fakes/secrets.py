"""Parts of an experiment config with a secret of each kind, and a search for them."""

PLANTED = {
    "description": "fetched from https://me:planted-1@example.org/data by way of a proxy",
    "environment": {
        "environment_variables": {"cpu": ["API_KEY=planted-2=="], "cuda": ["API_KEY=planted-3"]},
        "registry_auth": {"username": "me", "password": "planted-4", "identitytoken": "planted-5"},
        "pod_spec": {
            "spec": {
                "containers": [
                    {
                        "name": "b",
                        "env": [{"name": "A_TOKEN", "value": "planted-6"}],
                        "args": ["--token=planted-16", "x"],
                    }
                ]
            }
        },
    },
    "pbs": {"pbsbatch_args": ["-A PASSWORD=planted-10", "-l A=1,DB_TOKEN=planted-11"]},
    "slurm": {"sbatch_args": ["--export=HF_TOKEN=planted-12"]},
    "integrations": {
        "pachyderm": {
            "pachd": {"host": "a", "port": 1},
            "proxy": {"scheme": "http", "host": "a", "port": 1},
            "dataset": {
                **dict.fromkeys("project repo commit branch".split(), "a"),
                "token": "planted-7",
            },
        }
    },
    "tensorboard_storage": {
        "bucket": "a",
        "access_key": "planted-8",
        "secret_key": "planted-9",
        "type": "s3",
    },
}


def found_in(places):
    """The files of these files and folders in which one of the secrets is."""
    files = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
    assert len(files) > 5
    return {str(file) for file in files if b"planted-" in file.read_bytes()}
