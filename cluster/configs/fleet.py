"""Machines that an experiment's trials need from a pool, how many start, and their hourly price.

A pool of Kubernetes has pods for machines: `max_slots_per_pod` is its slots per agent.
"""

from cluster.configs.expconf import is_ours, runs
from cluster.configs.masterconf import Cluster, Pool
from cluster.configs.schema import Config, Findings
from cluster.configs.search import search_of
from cluster.facts.machines import no_code
from cluster.facts.prices import Price, load_prices, retired
from detalbert.errors import nearest
from detalbert.settings.schema import Finding, at, mappings, whole

SLOTS = "resources.slots_per_trial"
POOL = "resources.resource_pool"


def slots_of(config: Config) -> int:
    """Return the slots per trial; 1 if the config has no valid number."""
    slots = whole(at(config, SLOTS))
    return 1 if slots is None or slots < 0 else slots


def machines_at_start(config: Config, pool: Pool) -> tuple[int, int] | None:
    """Return the machines that the trials need at once, and that an idle `pool` starts at most;
    None if its machines are not known.

    The provisioner counts machines that are up, but wait for others of the same trial, as missing
    (agentrm/scaledecider of 0.38.1): with seven of eight up, eight more start.
    """
    slots = slots_of(config)
    width = pool.slots_per_agent
    if not width:
        return None
    trials = search_of(config).at_once
    if slots <= width:  # several trials may share a machine
        needed = started = -(-slots * trials // width)
    else:
        needed = -(-slots // width) * trials
        started = 2 * needed - 1
    limit = pool.max_agents
    if limit is None:
        limit = needed
    return min(needed, limit), min(started, limit)


def describe_start(config: Config, pool: Pool, price: Price | None) -> str:
    """Describe the machines that an idle pool starts: number, type and price per hour."""
    numbers = machines_at_start(config, pool)
    if numbers is None or pool.own or not pool.instance:
        if numbers and numbers[0]:
            return f"pool {pool.name}: {numbers[0]} of your own machines"
        return f"pool {pool.name}: your own machines"
    counts = sorted(set(numbers))
    count = " to ".join(map(str, counts))
    market = "spot" if pool.spot else "on demand"
    text = f"pool {pool.name}: {count} {pool.instance} ({market}) at the start"
    if price is None:
        where = f" of {pool.region}" if pool.region else ""
        return f"{text}, no price{where} in cluster/facts/prices.yaml"
    hourly = price.hourly(pool.spot)
    dollars = " to ".join(f"${number * hourly:,.2f}" for number in counts)
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
        if isinstance(image, dict):
            names = [image[kind] for kind in kinds if image.get(kind)]
            image = names[0] if names else None
        if image:
            return str(image)
    return None


def check_fleet(config: Config, cluster: Cluster) -> Findings:
    """Yield findings if the pool is missing or too small, or would run an unsuitable image."""
    name = cluster.pool_name(config)
    pool = cluster.pool_of(config)
    if pool is None:
        if not cluster.live:  # a running master says so itself
            problem = f"the master has no pool {name!r}; {nearest(name, cluster.pools)}"
            yield Finding(POOL, problem)
        return
    unfit = list(_check_width(config, pool))
    yield from unfit
    end = retired(pool.instance, load_prices())
    if end:
        yield Finding(POOL, f"pool {name!r}: {end}", warning=True)
    yield from _check_image(config, cluster, pool)
    if not unfit and pool.slots_per_agent and pool.max_agents:
        yield from _check_excluded(config, cluster, pool)
        yield from _check_surplus(config, pool)


def _check_image(config: Config, cluster: Cluster, pool: Pool) -> Findings:
    """Yield findings if this package's code gets no image of its own, or an image lacks the GPU."""
    image = image_of(config, pool)
    ours = is_ours(config) or runs(config, "predict.py")
    if image is None and cluster.images_known and ours:
        problem = "neither the experiment nor the master names one, and 0.38.1's own has torch 2.3"
        yield Finding("environment.image", f"{problem}; name one with torch 2.6 or later")
    lack = no_code(image, pool.gpu)
    if lack:
        yield Finding("environment.image", lack)


def _check_width(config: Config, pool: Pool) -> Findings:
    """Yield a finding if the slots of a trial do not fit the machines of its pool."""
    slots = slots_of(config)
    width = pool.slots_per_agent
    machines = "machines or pods" if pool.own else "machines"
    most = pool.slots
    if most is None and width and pool.max_agents is not None:
        most = width * pool.max_agents
    if width == 0 and slots:
        problem = f"pool {pool.name!r} has no slots; name a GPU pool in {POOL}"
        yield Finding(POOL, problem)
    elif width and slots > width and at(config, "resources.is_single_node") is True:
        problem = f"{slots} slots on one machine, and {pool.name!r} has {machines} of {width}"
        yield Finding("resources.is_single_node", problem)
    elif width and slots > width and slots % width:
        below = slots - slots % width
        problem = f"{slots} slots on {machines} of {width}: none would start"
        yield Finding(SLOTS, f"{problem}; use a multiple, {below} or {below + width}")
    elif most is not None and slots > most:
        problem = f"{slots} slots, but pool {pool.name!r} has at most {most}"
        cure = "add machines" if pool.own else "raise max_instances"
        yield Finding(SLOTS, f"{problem}; lower it or {cure}")


def _check_excluded(config: Config, cluster: Cluster, pool: Pool) -> Findings:
    """Yield a finding if no spare machine replaces one that a log policy excludes."""
    excludes = False
    for policy in mappings(config.get("log_policies")):
        action = policy.get("action")
        excludes |= "exclude_node" in (action, at(action, "type"))
    slots = slots_of(config)
    machines = -(-slots // (pool.slots_per_agent or 1))
    spare = (pool.max_agents or 0) - machines
    if slots and excludes and spare <= 0 and cluster.launch_error:
        problem = (
            f"an exclude_node policy, and pool {pool.name!r} has no machine beside the trial's "
            f"{machines}: once one is excluded, the trial ends or waits for ever"
        )
        cure = "add one" if pool.own else f"max_instances: {machines + 1}"
        cure += ", or set launch_error: false in the master"
        yield Finding("log_policies", f"{problem}; {cure}", warning=pool.own)


def _check_surplus(config: Config, pool: Pool) -> Findings:
    """Yield a warning if far more machines than needed would start."""
    needed, started = machines_at_start(config, pool) or (0, 0)
    if started > needed + 1:  # one more is the spare one
        problem = (
            f"pool {pool.name!r} starts up to {started} machines for {needed}, and too many again "
            f"after every reclaim; max_instances: {needed + 1} is enough for it"
        )
        yield Finding(SLOTS, problem, warning=True)
