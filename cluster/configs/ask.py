"""Queries to a running master: its validation of a config, and its resource pools.

Nothing is created: experiments are sent with `validateOnly`. The login is that of `det`:
DET_MASTER, and DET_USER and DET_PASS or the token that `det user login` stored.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import requests
from determined.common import api
from determined.common.api import authentication, certs, errors

from cluster.configs.masterconf import Cluster, Pool, cluster_of, own_pool
from cluster.facts.machines import gpu_of
from detalbert.errors import Unavailable, first_line
from detalbert.settings.schema import Finding, at, mapping, mappings

_LOGIN = "log in with `det user login`, or set DET_USER and DET_PASS"
_AWAY = (502, 503, 504)
_UNREACHED = (errors.MasterNotFoundException, requests.exceptions.ConnectionError)
_FAULTS: tuple[type[Exception], ...] = errors.BadRequestException, errors.BadResponseException
_FAULTS += OSError, ValueError, KeyError, TypeError, AttributeError  # not a master's answer


@contextlib.contextmanager
def reaching(address: str, said: str, cure: str) -> Iterator[None]:
    """Convert the failures of a query to Unavailable: no login, or `said`, why and the cure."""
    try:
        yield
    except errors.UnauthenticatedException:
        raise Unavailable(f"{address} wants a login; {_LOGIN}") from None
    except _FAULTS as error:
        if getattr(error, "status_code", 0) in _AWAY:
            said, cure = f"{address} is not ready", "try again"
        why = "" if isinstance(error, _UNREACHED) else f" ({first_line(error)})"
        raise Unavailable(f"{said}{why}; {cure}") from None


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
        with reaching(address, f"no master answers at {address}", "set DET_MASTER"):
            address = api.canonicalize_master_url(address)
            cert = certs.default_load(address)
            try:  # a password of None would be asked for
                found = authentication.login_with_cache(address, user, "", cert)
                session = api.Session(address, found.username, found.token, cert, 0)
                session.get("/api/v1/me")  # a token of the environment was not tried yet
                return cls(address, session)
            except errors.ForbiddenException:
                said = f"{address} does not know this user and password; {_LOGIN}"
                raise Unavailable(said) from None

    def check(self, text: str) -> Iterator[Finding]:
        """Yield a finding with the master's reason if it rejects the experiment config `text`."""
        body = {"config": text, "validateOnly": True}
        refused = self._ask("/api/v1/experiments", body).get("refused")
        if refused:
            reason = str(refused).replace("invalid experiment configuration: ", "")
            yield Finding("master", "refuses it: " + "; ".join(reason.splitlines()))

    def cluster(self) -> Cluster:
        """Return the current pools; their images only if this user may read the master's config."""
        raw = mappings(self._ask("/api/v1/resource-pools").get("resourcePools"))
        agents = mappings(self._ask("/api/v1/agents").get("agents"))
        config = mapping(self._ask("/api/v1/master/config").get("config"))
        said, found = cluster_of(config), {}
        # The fork keeps pools in its database, too; they take the master's defaults.
        defaults = mapping(config.get("task_container_defaults"))
        for pool in raw:
            name = str(pool.get("name"))
            tasks = said.pools[name].tasks if name in said.pools else defaults
            found[name] = _pool(name, pool, agents)._replace(tasks={"image": tasks.get("image")})
        default = next((p["name"] for p in raw if p.get("defaultComputePool")), "default")
        known = bool(config)
        return said._replace(pools=found, default=str(default), live=True, images_known=known)

    def _ask(self, path: str, body: Any = None) -> dict[str, Any]:
        """Return the answer, or the reason of a refusal under the key `refused`."""
        with reaching(self.address, f"{self.address} does not answer", "try again"):
            try:
                get, post = self.session.get, self.session.post
                return mapping((post(path, json=body) if body else get(path)).json())
            except (errors.APIException, errors.ForbiddenException) as error:
                if getattr(error, "status_code", 0) in _AWAY:
                    raise
                return {"refused": str(error) or type(error).__name__}


def _pool(name: str, raw: dict[str, Any], agents: list[dict[str, Any]]) -> Pool:
    """Return a pool from `/api/v1/resource-pools`; agents are counted for static pools only."""
    kind, spot = raw.get("type"), bool(at(raw, "details.aws.spotEnabled"))
    width = raw.get("slotsPerAgent")
    width = width if isinstance(width, int) and width >= 0 else None
    if kind == "RESOURCE_POOL_TYPE_K8S":  # its maxAgents is always 0
        return Pool(name, width, None, None, spot, own=True)
    if kind != "RESOURCE_POOL_TYPE_STATIC":
        instance = str(raw.get("instanceType") or "")
        pool = Pool(name, width, raw.get("maxAgents"), gpu_of(instance), spot, instance)
        return pool._replace(region=str(at(raw, "details.aws.region") or ""))
    mine = [a for a in agents if name in (a.get("resourcePools") or []) and a.get("enabled")]
    widths = {len(mapping(agent.get("slots"))) for agent in mine}
    width, slots = widths.pop() if len(widths) == 1 else None, raw.get("slotsAvailable")
    return own_pool(name, slots_per_agent=width, max_agents=len(mine), spot=spot, slots=slots)
