"""A running master's own verdict on an experiment; nothing is created."""

from determined.common.api import errors

from cluster.master import BoundedSession, reaching

# Statuses with which a master refuses a config: 0.38.1 and its fork.
REFUSALS = (400, 500)


def refusal(session: BoundedSession, text: str) -> str:
    """Return the reason for which a master refuses an experiment; empty if it accepts it.

    Args:
        session: of `cluster.master.login`.
        text: the config, as YAML or JSON.

    Raises:
        Unavailable: if the master does not answer, or not as a master does.
    """
    body = {"config": text, "validateOnly": True}
    address = session.master
    with reaching(address, problem=f"{address} does not answer", cure="try again"):
        try:
            # TypeError and KeyError are told as what no master answers.
            session.post("/api/v1/experiments", json=body).json()["experiment"]["id"]
        except (errors.ForbiddenException, errors.NotFoundException) as error:
            return str(error)
        except errors.APIException as error:
            is_refusal = error.response_error and error.status_code in REFUSALS
            if not is_refusal:
                raise
            return error.message
    return ""
