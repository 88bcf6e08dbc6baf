"""Queries to a running master: its validation of a config, and its resource pools.

Nothing is created: experiments are sent with `validateOnly`. The login is that of `det`:
DET_MASTER, and DET_USER and DET_PASS or the token that `det user login` stored. Answers are read as
plain JSON, not into the client's types, so that a field that a release adds or drops is no error.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import requests
from determined.common import api
from determined.common.api import authentication, certs, errors

from cluster.configs.masterconf import Cluster, Pool, cluster_of, own_pool
from cluster.configs.schema import Findings
from cluster.configs.values import Finding, at, mapping, mappings, whole
from cluster.facts.machines import gpu_of
from detalbert.errors import Unavailable, first_line
from detalbert.settings.values import Config

_LOGIN = "log in with `det user login`, or set DET_USER and DET_PASS"
_AWAY = (502, 503, 504)  # statuses of a proxy whose master starts or is restarted
_UNREACHED = (errors.MasterNotFoundException, requests.exceptions.ConnectionError)
_FAULTS: tuple[type[Exception], ...] = (
    errors.BadRequestException,
    errors.BadResponseException,
    OSError,
    ValueError,  # this and what follows: not a master's answer
    KeyError,
    TypeError,
    AttributeError,
)


@contextlib.contextmanager
def reaching(address: str, problem: str, cure: str) -> Iterator[None]:
    """Convert the failures of a query to Unavailable: no login, or problem, reason and cure."""
    try:
        yield
    except errors.UnauthenticatedException:
        raise Unavailable(f"{address} wants a login", cure=_LOGIN) from None
    except _FAULTS as error:
        if _is_away(error):
            problem = f"{address} is not ready"
            cure = "try again"
        if not isinstance(error, _UNREACHED):
            problem += f" ({first_line(error)})"
        raise Unavailable(problem, cure=cure) from None


def _is_away(error: Exception) -> bool:
    return getattr(error, "status_code", 0) in _AWAY


class Master(NamedTuple):
    """A master that the user is logged in to. Methods raise Unavailable if it does not answer."""

    address: str
    session: api.Session

    @classmethod
    def login(cls, address: str | None = None, user: str | None = None) -> "Master":
        """Log in to `address` and as `user`, or as `det` would, without prompting.

        Raises Unavailable if no master answers there, or it accepts no stored login.
        """
        address = address or api.get_default_master_url()
        problem = f"no master answers at {address}"
        with reaching(address, problem, cure="set DET_MASTER"):
            address = api.canonicalize_master_url(address)
            cert = certs.default_load(address)
            try:
                # A password of None would be asked for.
                token = authentication.login_with_cache(address, user, "", cert)
                session = api.Session(address, token.username, token.token, cert, max_retries=0)
                # A token of the environment is tried by its first use only.
                session.get("/api/v1/me")
            except errors.ForbiddenException:
                raise Unavailable(
                    f"{address} does not know this user and password", cure=_LOGIN
                ) from None
        return cls(address, session)

    def check(self, text: str) -> Findings:
        """Yield a finding with the master's reason if it rejects the experiment config `text`."""
        body = {"config": text, "validateOnly": True}
        refusal = self._ask("/api/v1/experiments", body).get("refused")
        if refusal:
            reason = str(refusal).replace("invalid experiment configuration: ", "")
            reasons = "; ".join(reason.splitlines())
            yield Finding(key="master", problem=f"refuses it: {reasons}")

    def cluster(self) -> Cluster:
        """Return the current pools; their images only if this user may read the master's config."""
        rows = mappings(self._ask("/api/v1/resource-pools").get("resourcePools"))
        agents = mappings(self._ask("/api/v1/agents").get("agents"))
        config = mapping(self._ask("/api/v1/master/config").get("config"))
        configured = cluster_of(config)
        pools = {}
        default = "default"
        for row in rows:
            pool = _pool(row, agents)
            if row.get("defaultComputePool"):
                default = pool.name
            # The fork keeps pools in its database, too; they take the master's defaults.
            named = configured.pool_of({"resources": {"resource_pool": pool.name}})
            tasks = named.tasks if named else configured.tasks
            pools[pool.name] = pool._replace(tasks={"image": tasks.get("image")})
        return configured._replace(
            pools=pools,
            default=default,
            live=True,
            images_known=bool(config),
            partitions=None,  # all of them are among the pools
        )

    def _ask(self, path: str, body: Config | None = None) -> Config:
        """Return the answer, or the reason of a refusal under the key `refused`."""
        problem = f"{self.address} does not answer"
        with reaching(self.address, problem, cure="try again"):
            try:
                if body is None:
                    return mapping(self.session.get(path).json())
                return mapping(self.session.post(path, json=body).json())
            except (errors.APIException, errors.ForbiddenException) as error:
                if _is_away(error):
                    raise
                return {"refused": str(error) or type(error).__name__}


def _pool(row: Config, agents: list[Config]) -> Pool:
    """Return a pool from `/api/v1/resource-pools`; agents are counted for static pools only."""
    name = str(row.get("name"))
    kind = row.get("type")
    width = whole(row.get("slotsPerAgent"))
    pool = own_pool(name, tasks={})
    pool = pool._replace(spot=bool(at(row, "details.aws.spotEnabled")))
    if kind == "RESOURCE_POOL_TYPE_K8S":  # its maxAgents is always 0
        return pool._replace(slots_per_agent=width)
    if kind != "RESOURCE_POOL_TYPE_STATIC":
        instance = str(row.get("instanceType") or "")
        is_width_known = width is not None and width >= 0
        return pool._replace(
            slots_per_agent=width if is_width_known else None,
            max_agents=row.get("maxAgents"),
            gpu=gpu_of(instance),
            instance=instance,
            own=False,
            region=str(at(row, "details.aws.region") or ""),
        )

    # A static pool is what its agents are; one width holds for it if it does for all of them.
    pool_agents = []
    for agent in agents:
        if agent.get("enabled") and name in (agent.get("resourcePools") or []):
            pool_agents.append(agent)
    widths = {len(mapping(agent.get("slots"))) for agent in pool_agents}
    return pool._replace(
        slots_per_agent=widths.pop() if len(widths) == 1 else None,
        max_agents=len(pool_agents),
        slots=row.get("slotsAvailable"),
    )
