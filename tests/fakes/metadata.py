"""An instance metadata service on loopback: IMDSv2, and IMDSv1 where it allows it."""

from tests.fakes.http import FakeServer


class MetadataServer(FakeServer):
    """Serves `spot/instance-action` once `notice` is set, and the rebalance path once `rebalance`
    is. `asked` lists what was asked for; the other attributes can be changed at any time."""

    def __init__(self):
        self.notice = None
        self.rebalance = None
        self.token = "secret"  # the one that is given, and the only one that is taken
        # Token requests: "given", a status instead, "cut", or "unanswered" (a hop limit of 1).
        self.tokens = "given"
        self.required = True  # a request without a token is refused
        self.fault = ""  # the other requests: a status, "cut" or "unanswered"
        self.asked = []
        super().__init__()

    def respond(self, request):
        is_for_token = request.method == "PUT"
        fault = self.tokens if is_for_token else self.fault
        if not is_for_token:
            self.asked.append(request.path)
        self.hinder(fault)
        if isinstance(fault, int):
            return fault, b""
        if is_for_token:
            lifetime = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            if request.path != "/latest/api/token" or not lifetime:
                return 400, b""
            return self.token.encode()
        token = request.headers.get("X-aws-ec2-metadata-token")
        if token != self.token and (token or self.required):
            return 401, b""
        bodies = {
            "/latest/meta-data/spot/instance-action": self.notice,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }
        body = bodies.get(request.path)
        return body and body.encode()
