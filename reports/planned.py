"""Plans of a cluster's experiments, as `cluster.plan` makes them, in the pools where they ran."""

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from cluster.expconf import runs
from cluster.machines import gpu_of
from cluster.masterconf import Cluster, Pool
from cluster.usage import Experiment, Records
from detalbert.errors import UserError
from reports.rates import Rates
from reports.run import Run


def with_plans(records: Records, rates: Rates, runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return `runs`, which begin with the experiments', with plans; a line per reason of none."""
    found, reasons = list(runs), defaultdict[str, list[str]](list)
    for index, experiment in enumerate(records.experiments):
        try:
            plan = _plan(experiment, records, rates)
            found[index] = dataclasses.replace(runs[index], plan=plan)
        except Exception as error:  # a master has any config, and no plan may fail the bill
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            reasons[f"{kind}{error}"].append(str(experiment.id))
    return found, [f"experiment {', '.join(ids)}: no plan: {why}" for why, ids in reasons.items()]


def _plan(experiment: Experiment, records: Records, rates: Rates) -> dict[str, str]:
    """Return hours and dollars of an experiment's plan. Raises UserError if it has none."""
    from cluster import options, plan_text  # they import torch

    name, config = experiment.pool, copy.deepcopy(dict(experiment.config))
    pool = records.pools.get(name)
    price = None if pool is None else rates.at(rates.kind(pool.instance, pool.region))
    if pool is None or price is None:
        raise UserError(f"pool {name} has no price")
    if (config.get("searcher") or {}).get("name", "single") != "single":
        raise UserError("a search's trials end when it drops them")
    if runs(config, "predict.py"):
        raise UserError("it is no training")
    price = dataclasses.replace(price, retired=None)  # it was not yet
    gpu = gpu_of(pool.instance)
    where = Pool(name, price.slots, None, gpu, pool.spot, pool.instance)
    cluster = Cluster({name: where}, name, launch_error=False, images_known=False)
    config["resources"] = {**(config.get("resources") or {}), "resource_pool": name}
    asked = options.Asked({pool.instance: price})
    option = options.plan_option(config, cluster, asked)
    if option is None or not option.cases:
        raise UserError(option.why_not if option else f"{pool.instance}: its GPU is not known")
    return {"planned hours": plan_text.hours(option), "planned $": plan_text.dollars(option)}
