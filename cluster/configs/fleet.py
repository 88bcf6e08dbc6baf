"""Machines that an experiment's trials need from a pool, how many start, and their hourly price."""

from collections.abc import Iterator, Mapping
from typing import Any

from cluster.configs.masterconf import Cluster, Pool
from cluster.facts.machines import no_code
from cluster.facts.prices import Price, load_prices, retired
from detalbert.errors import nearest
from detalbert.settings.schema import Finding, at, mapping, mappings, whole

SLOTS = "resources.slots_per_trial"


def slots_of(config: dict[str, Any]) -> int:
    """Return the slots per trial; 1 if the config has no valid number."""
    slots = whole(at(config, SLOTS))
    return 1 if slots is None or slots < 0 else slots


def machines_at_start(config: dict[str, Any], pool: Pool) -> tuple[int, int] | None:
    """Return the machines that the trials need at once, and that an idle `pool` starts at most;
    None if its machines are not known.

    The provisioner counts machines that are up, but wait for others of the same trial, as missing
    (agentrm/scaledecider of 0.38.1): with seven of eight up, eight more start.
    """
    slots, width = slots_of(config), pool.slots_per_agent
    if not width:
        return None
    searcher, trials = mapping(config.get("searcher")), 1  # trials that run at the same time
    if searcher.get("name") not in (None, "single"):
        most = whole(searcher.get("max_concurrent_trials", 16)), whole(searcher.get("max_trials"))
        trials = min(number for number in [*most, 16 * 64] if number)
    each = -(-slots // width)
    needed = each * trials if slots >= width else -(-slots * trials // width)
    limit = needed if pool.max_agents is None else pool.max_agents
    return min(needed, limit), min(2 * needed - 1 if each > 1 else needed, limit)


def describe_start(config: dict[str, Any], pool: Pool, prices: Mapping[str, Price]) -> str:
    """Describe the machines that an idle pool starts: number, type and price per hour."""
    numbers = machines_at_start(config, pool)
    if numbers is None or pool.own or not pool.instance:
        count = f"{numbers[0]} of " if numbers and numbers[0] else ""
        return f"pool {pool.name}: {count}your own machines"
    counts = sorted({*numbers} - {0})
    count, kind = " to ".join(map(str, counts)) or "0", "spot" if pool.spot else "on demand"
    text = f"pool {pool.name}: {count} {pool.instance} ({kind}) at the start"
    if pool.instance not in prices:
        return f"{text}, no price in cluster/facts/prices.yaml"
    hour = prices[pool.instance].hourly(pool.spot)
    dollars = " to ".join(f"${n * hour:,.2f}" for n in counts) or "$0"
    return f"{text}, {dollars} an hour"


def image_of(config: dict[str, Any], pool: Pool | None) -> str | None:
    """Return the image of the container: the experiment's, or that of task_container_defaults."""
    for image in (at(config, "environment.image"), pool and pool.tasks.get("image")):
        if isinstance(image, dict):
            kinds = ["cpu"] if pool and pool.slots_per_agent is not None else ["cuda", "gpu", "cpu"]
            kinds = ["cuda", "gpu"] if pool and pool.gpu else kinds
            image = next((image[kind] for kind in kinds if image.get(kind)), None)
        if image:
            return str(image)
    return None


def check_fleet(config: dict[str, Any], cluster: Cluster) -> Iterator[Finding]:
    """Yield findings if the pool is missing or too small, or would run an unsuitable image."""
    name, pool = cluster.pool_name(config), cluster.pool_of(config)
    if pool is None:
        if not cluster.live:  # a running master says so itself
            problem = f"the master has no pool {name!r}; {nearest(name, list(cluster.pools))}"
            yield Finding("resources.resource_pool", problem)
        return
    width = list(_check_width(config, pool))
    yield from width
    if said := retired(pool.instance, load_prices()):
        yield Finding("resources.resource_pool", f"pool {name!r}: {said}", warning=True)
    image = image_of(config, pool)
    if image is None and cluster.images_known:
        problem = "neither the experiment nor the master names one, and 0.38.1's own has torch 2.3"
        yield Finding("environment.image", f"{problem}; name one with torch 2.6 or later")
    if said := no_code(image, pool.gpu):
        yield Finding("environment.image", said)
    if not width and pool.slots_per_agent and pool.max_agents:
        yield from _check_spare(config, cluster, pool)


def _check_width(config: dict[str, Any], pool: Pool) -> Iterator[Finding]:
    slots, width = slots_of(config), pool.slots_per_agent
    most = pool.slots
    if most is None and width and pool.max_agents is not None:
        most = width * pool.max_agents
    if width == 0 and slots:
        problem = f"pool {pool.name!r} has no slots; name a GPU pool in resources.resource_pool"
        yield Finding("resources.resource_pool", problem)
    elif width and slots > width and slots % width:
        fit = f"{slots // width * width} or {-(-slots // width) * width}"
        problem = f"{slots} slots on agents of {width}: no agents would start"
        yield Finding(SLOTS, f"{problem}; use a multiple, {fit}")
    elif width and slots > width and at(config, "resources.is_single_node") is True:
        problem = f"{slots} slots on one machine, and {pool.name!r} has machines of {width}"
        yield Finding("resources.is_single_node", problem)
    elif most is not None and slots > most:
        problem = f"{slots} slots, but pool {pool.name!r} has at most {most}"
        fix = "add machines" if pool.own else "raise max_instances"
        yield Finding(SLOTS, f"{problem}; lower it or {fix}")


def _check_spare(config: dict[str, Any], cluster: Cluster, pool: Pool) -> Iterator[Finding]:
    """Yield findings if no spare machine replaces an excluded one, or far too many would start."""
    slots, most = slots_of(config), pool.max_agents or 0
    machines = -(-slots // (pool.slots_per_agent or 1))
    actions = [policy.get("action") for policy in mappings(config.get("log_policies"))]
    excludes = any(mapping(a).get("type", a) == "exclude_node" for a in actions)
    if excludes and machines + 1 > most and cluster.launch_error and slots:
        problem = f"an exclude_node policy, and pool {pool.name!r} has no machine beside the "
        problem += f"trial's {machines}: once one is excluded, the trial ends or waits for ever"
        fix = "add one" if pool.own else f"max_instances: {machines + 1}"
        fix += ", or set launch_error: false in the master"
        yield Finding("log_policies", f"{problem}; {fix}", warning=pool.own)
    needed, launched = machines_at_start(config, pool) or (0, 0)
    if machines > 1 and launched > needed + 1:
        problem = f"pool {pool.name!r} starts up to {launched} machines for {needed}, and too many "
        problem += f"again after every reclaim; max_instances: {needed + 1} is enough for it"
        yield Finding(SLOTS, problem, warning=True)
