"""Machines that an experiment's trials need from a pool, how many start, and their hourly price.

A pool of Kubernetes has pods for machines: `max_slots_per_pod` is its slots per agent. The counts
follow the source of the provisioner of 0.38.1, which starts more machines than a job needs: a
release that counts otherwise needs another `machines_at_start`.
"""

from cluster.configs.expconf import is_ours, predicts
from cluster.configs.masterconf import Cluster, Pool
from cluster.configs.schema import Findings
from cluster.configs.search import search_of
from cluster.configs.values import Finding, at, mappings, whole
from cluster.facts.machines import no_code
from cluster.facts.prices import Price, load_prices, retired
from detalbert.errors import nearest
from detalbert.settings.values import Config

SLOTS = "resources.slots_per_trial"
POOL = "resources.resource_pool"


def slots_of(config: Config) -> int:
    """Return the slots per trial; 1 if the config has no valid number."""
    slots = whole(at(config, SLOTS))
    if slots is None or slots < 0:
        return 1
    return slots


def trials_per_machine(slots: int, width: int) -> int:
    """Return how many trials a machine of `width` slots has room for, 1 for larger trials: one
    that fits a machine is never spread over two (findSharedAgentFit of agentrm/fitting.go).
    """
    return max(1, width // max(slots, 1))


def machines_at_start(config: Config, pool: Pool) -> tuple[int, int] | None:
    """Return the machines that the trials need at once, and that an idle `pool` starts at most;
    None if its machines are not known.

    The provisioner counts machines that are up, but wait for others of the same trial, as missing
    (agentrm/scaledecider of 0.38.1): with seven of eight up, eight more start.
    """
    slots = slots_of(config)
    width = pool.slots_per_agent
    if not width or not slots:
        return None
    trials = search_of(config).at_once
    if slots <= width:
        # Several trials may share a machine, and none waits for another machine.
        needed = -(-trials // trials_per_machine(slots, width))
        started = needed
    else:
        needed = -(-slots // width) * trials
        started = 2 * needed - 1
    limit = pool.max_agents if pool.max_agents is not None else needed
    return min(needed, limit), min(started, limit)


def describe_start(config: Config, pool: Pool, price: Price | None) -> str:
    """Describe the machines that an idle pool starts: number, type and price per hour."""
    numbers = machines_at_start(config, pool)
    if pool.own or not pool.instance:
        count = f"{numbers[0]} of " if numbers else ""
        return f"pool {pool.name}: {count}your own machines"
    market = "spot" if pool.spot else "on demand"
    if numbers is None:  # a trial takes no slots, or its machines have none
        return f"pool {pool.name}: {pool.instance} ({market})"
    counts = sorted(set(numbers))  # one number, or needed and started
    shown_counts = " to ".join(str(count) for count in counts)
    text = f"pool {pool.name}: {shown_counts} {pool.instance} ({market}) at the start"
    if price is None:
        place = f" of {pool.region}" if pool.region else ""
        return f"{text}, no price{place} in cluster/facts/prices.yaml"
    hourly = price.hourly(pool.spot)
    dollars = " to ".join(f"${count * hourly:,.2f}" for count in counts)
    return f"{text}, {dollars} an hour"


def image_of(config: Config, pool: Pool | None) -> str | None:
    """Return the image of the container: the experiment's, or that of task_container_defaults."""
    images = [at(config, "environment.image")]
    kinds = ["cuda", "gpu", "cpu"]
    if pool is not None:
        images.append(pool.tasks.get("image"))
        if pool.gpu:
            kinds = ["cuda", "gpu"]
        elif pool.slots_per_agent is not None and not pool.own:
            kinds = ["cpu"]
    for image in images:
        # One name, or a name for each kind of slot; `gpu` is what older releases call `cuda`.
        if isinstance(image, dict):
            image = next((image[kind] for kind in kinds if image.get(kind)), None)
        if image:
            return str(image)
    return None


def check_fleet(config: Config, cluster: Cluster) -> Findings:
    """Yield findings if the pool is missing or too small, or would run an unsuitable image."""
    name = cluster.pool_name(config)
    pool = cluster.pool_of(config)
    if pool is None:
        if not cluster.live:  # a running master says so itself
            yield Finding(
                key=POOL,
                problem=f"the master has no pool {name!r}",
                cure=nearest(name, cluster.pools),
            )
        return
    misfits = list(_check_width(config, pool))
    yield from misfits
    retirement = retired(pool.instance, load_prices())
    if retirement and not pool.own:  # one's own are there
        yield Finding(key=POOL, problem=f"pool {name!r}: {retirement}", warning=True)
    yield from _check_image(config, cluster, pool)

    # Of a trial that does not fit the machines, numbers of machines say nothing.
    if not misfits and pool.slots_per_agent and pool.max_agents:
        yield from _check_excluded(config, cluster, pool)
        yield from _check_surplus(config, pool)


def _check_image(config: Config, cluster: Cluster, pool: Pool) -> Findings:
    """Yield findings if this package's code gets no image of its own, or an image lacks the GPU."""
    image = image_of(config, pool)
    ours = is_ours(config) or predicts(config)
    if image is None and cluster.images_known and ours:
        yield Finding(
            key="environment.image",
            problem="neither the experiment nor the master names one, and 0.38.1's own has torch "
            "2.3",
            cure="name one with torch 2.6 or later",
        )
    lack = no_code(image, pool.gpu)
    if lack is not None:
        yield Finding(key="environment.image", problem=lack)


def _check_width(config: Config, pool: Pool) -> Findings:
    """Yield a finding if the slots of a trial do not fit the machines of its pool."""
    slots = slots_of(config)
    width = pool.slots_per_agent
    machines = "machines or pods" if pool.own else "machines"
    # A running master says how many slots there are; a config says how many may be started.
    pool_slots = pool.slots  # None: not known
    if pool_slots is None and width and pool.max_agents is not None:
        pool_slots = width * pool.max_agents

    if width == 0 and slots:
        yield Finding(
            key=POOL,
            problem=f"pool {pool.name!r} has no slots",
            cure=f"name a GPU pool in {POOL}",
        )
    elif width and slots > width and at(config, "resources.is_single_node") is True:
        yield Finding(
            key="resources.is_single_node",
            problem=f"{slots} slots on one machine, and {pool.name!r} has {machines} of {width}",
        )
    elif width and slots > width and slots % width:
        below = slots - slots % width
        yield Finding(
            key=SLOTS,
            problem=f"{slots} slots on {machines} of {width}: none would start",
            cure=f"use a multiple, {below} or {below + width}",
        )
    elif pool_slots is not None and slots > pool_slots:
        raise_limit = "add machines" if pool.own else "raise max_instances"
        yield Finding(
            key=SLOTS,
            problem=f"{slots} slots, but pool {pool.name!r} has at most {pool_slots}",
            cure=f"lower it or {raise_limit}",
        )


def _check_excluded(config: Config, cluster: Cluster, pool: Pool) -> Findings:
    """Yield a finding if no spare machine replaces one that a log policy excludes."""
    # A policy names its action as a text, or as a mapping with a type.
    excludes = False
    for policy in mappings(config.get("log_policies")):
        action = policy.get("action")
        excludes |= "exclude_node" in (action, at(action, "type"))
    slots = slots_of(config)
    machines = -(-slots // (pool.slots_per_agent or 1))
    spare = (pool.max_agents or 0) - machines
    if slots and excludes and spare <= 0 and cluster.launch_error:
        one_more = "add one" if pool.own else f"max_instances: {machines + 1}"
        yield Finding(
            key="log_policies",
            problem=f"an exclude_node policy, and pool {pool.name!r} has no machine beside the "
            f"trial's {machines}: once one is excluded, the trial ends or waits for ever",
            cure=f"{one_more}, or set launch_error: false in the master",
            warning=pool.own,
        )


def _check_surplus(config: Config, pool: Pool) -> Findings:
    """Yield a warning if far more machines than needed would start."""
    needed, started = machines_at_start(config, pool) or (0, 0)
    enough = needed + 1  # one more is the spare one
    if started > enough:
        yield Finding(
            key=SLOTS,
            problem=f"pool {pool.name!r} starts up to {started} machines for {needed}, and too "
            "many again after every reclaim",
            cure=f"max_instances: {enough} is enough for it",
            warning=True,
        )
