"""What a Determined master recorded: experiments, trials, allocations, machines; two by default.

Of the two experiments that are there by default, 7 had 16 slots on two spot machines, i-a and i-b,
and ended well. Its first allocation failed 30 min after a checkpoint; of the second nothing was
lost, but i-b was taken and i-c came. Experiment 8 has 8 slots on demand on i-d, since 12:00.
"""

from typing import Any, NamedTuple

DAY = "2026-11-20"
SPOT, ON_DEMAND = "aws-spot-p3-16xlarge", "aws-p3-16xlarge"


def at(clock: str, zone: str = "Z") -> str | None:
    """12:30 of the day, or a whole time; None where it is empty."""
    text = clock if "T" in clock else f"{DAY}T{clock}:00"
    return f"{text}.000000{zone}" if clock else None


class Held(NamedTuple):
    """One allocation; `end` is empty while it runs."""

    id: str
    start: str
    end: str
    machines: list[str]
    pool: str = SPOT
    exit: str = ""  # its exit reason; empty where the master recorded none
    log: str = ""  # who requested its end
    launched: str = ""  # when its script was started
    silent: bool = False  # its containers did not come up, so they reported no machine

    @property
    def task(self) -> str:
        return self.id.rpartition(".")[0]


class Kept(NamedTuple):
    """One trial. Reports: time, steps done, windows a second."""

    held: list[Held]
    checkpoints: list[str] = []
    reports: list[tuple[str, int, float]] = []
    state: str = "COMPLETED"
    scores: dict[str, float] | None = None
    steps: int | None = None
    restarts: int = 0
    hparams: dict[str, Any] = {}  # of its own


class Ran(NamedTuple):
    """One experiment, or (`kind` given) another task or one that was deleted, by its trials."""

    trials: list[Kept]
    slots: int = 8
    user: str = "ada"
    labels: list[str] = []
    hyperparameters: dict[str, Any] = {"global_batch_size": 256, "model": "albert-xxlarge-v2"}
    data: dict[str, Any] = {"train": "rajpurkar/squad_v2"}
    kind: str = "TRIAL"
    name: str = "albert-squad"
    config: dict[str, Any] = {"entrypoint": "python3 train.py"}

    @property
    def held(self) -> list[Held]:
        return [held for trial in self.trials for held in trial.held]


class Cluster(NamedTuple):
    ran: dict[int, Ran]
    instances: list[tuple[str, str, str]] = []  # machine, launch, end; ends as the master sees them
    agents: list[tuple[str, str, str]] = []  # machine, first and last contact
    work: list[tuple[int, str, str, str]] = []  # experiment, kind, from, to
    hidden: tuple[str, ...] = ()  # tasks that the user may not see
    pool: dict[str, Any] = {}  # of all pools, in place of the usual
    slots: dict[str, int] = {}  # of machines that have not 8
    aws: dict[str, dict[str, Any]] = {}  # of pools on EC2, by name; more than the usual two, too
    projects: dict[tuple[str, str], list[int]] = {}  # (workspace, project) -> its experiments


# Exit reasons and log lines of a real 0.38.1.
FAILED = (
    "allocation failed: resources failed with non-zero exit code: container failed with non-zero "
    "exit code: 137 (exit code 137)"
)
LEFT = (
    "allocation preempted after all resources exited: resources exited successfully with a "
    "zero exit code"
)
LOST = (
    "allocation failed due to agent failure: agent failed while the container was running: agent "
    "closed with allocated containers"
)
KILLED = "allocation killed after all resources exited: resources were killed"
STOPPING = "gracefully terminating allocation's remaining resources (reason: {})"
PAUSE = STOPPING.format("user requested pause")
SCHEDULER = STOPPING.format("preempted by the scheduler")
SEVEN = Kept(
    [
        Held("7.task.0", "10:10", "11:10", ["i-a", "i-b"], exit=FAILED),
        Held("7.task.1", "11:20", "11:50", ["i-a", "i-b"], exit=LOST),
        Held("7.task.2", "12:00", "12:31", ["i-a", "i-c"]),
    ],
    ["10:40", "11:50", "12:30"],
    [("10:35", 200, 200 * 256 / 1200), ("11:45", 300, 100 * 256 / 1200),
     ("12:20", 400, 100 * 256 / 900)],
    scores={"exact": 86.0, "f1": 89.0, "loss": 0.5},
    restarts=1,
)  # fmt: skip
EIGHT = Kept([Held("8.task.0", "12:00", "", ["i-d"], ON_DEMAND)], state="RUNNING", steps=100)
DEFAULT = Cluster(
    {7: Ran([SEVEN], 16, labels=["squad"]), 8: Ran([EIGHT], user="bob")},
    [("i-a", "10:00", "12:40"), ("i-b", "10:00", ""), ("i-c", "11:55", "12:40"),
     ("i-d", "11:50", "")],
    [("i-a", "10:09", "12:41"), ("i-b", "10:09", "11:51"), ("i-c", "11:59", "12:41"),
     ("i-d", "11:59", "")],
    [
        (7, "imagepulling", "10:10", "10:15"),
        (7, "training", "10:15", "10:35"),
        (7, "checkpointing", "10:35", "10:40"),
        (7, "training", "10:40", "11:00"),  # rolled back
        (7, "training", "11:20", "11:45"),
        (7, "checkpointing", "11:45", "11:50"),
        (7, "training", "12:00", "12:20"),
        (7, "validation", "12:20", "12:25"),
        (7, "checkpointing", "12:25", "12:30"),
        (8, "training", "12:05", "12:50"),
    ],
)  # fmt: skip
