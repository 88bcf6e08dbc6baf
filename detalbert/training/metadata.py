"""Instance metadata service of EC2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-options.html
"""

import http.client
import os
import urllib.error
import urllib.request

ENDPOINT = "http://169.254.169.254"
TIMEOUT = 2.0  # seconds; the service is on the machine's own link
TOKEN = "X-aws-ec2-metadata-token"
WITH_TOKEN = "with a token (IMDSv2)"
WITHOUT_TOKEN = "without a token (IMDSv1), for the token request gets none"


class TokenWanted(Exception):
    """The service requires a token, but sends none that arrives here."""

    def __init__(self) -> None:
        super().__init__("the instance metadata service wants a token, and none arrives here")


class Metadata:
    """Client of the service at its own address, or at `AWS_EC2_METADATA_SERVICE_ENDPOINT`.

    Uses a token (IMDSv2), or none if it cannot get one (IMDSv1): with a metadata hop limit of 1 the
    response to a token request does not reach a container with its own network, a plain one does.
    """

    def __init__(self) -> None:
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self.address = endpoint.rstrip("/")
        self.way: str | None = None  # how the last answer came, None before the first
        self._token: str | None = None
        # The service is never behind the proxy of the environment.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def read(self, path: str) -> str | None:
        """Return the text at `path` (below meta-data/), or None if there is none (status 404).

        Raises:
            TokenWanted: if the service requires a token, but sends none.
            OSError, http.client.HTTPException: if the response is missing, truncated or an error.
        """
        if self.way is None:
            self._token = self._take_token()
        try:
            headers = {TOKEN: self._token} if self._token else None
            text: str | None = self._request("GET", f"meta-data/{path}", headers)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return self._read_in_another_way(path, error)
            if error.code != 404:
                raise
            text = None
        self.way = WITH_TOKEN if self._token else WITHOUT_TOKEN
        return text

    def _read_in_another_way(self, path: str, refusal: urllib.error.HTTPError) -> str | None:
        if self.way is not None:  # the token ran out, or tokens are wanted from now on
            self.way = None
            return self.read(path)
        if self._token is None:
            raise TokenWanted from None
        raise refusal

    def _take_token(self) -> str | None:
        """Return a token for six hours, or None if the service sends none to this process."""
        try:
            return self._request("PUT", "api/token", {f"{TOKEN}-ttl-seconds": "21600"})
        except urllib.error.HTTPError as error:
            if error.code not in (403, 404, 405):
                raise
        except (OSError, http.client.HTTPException):  # no answer, or a cut one
            pass
        return None

    def _request(self, method: str, path: str, headers: dict[str, str] | None) -> str:
        url = f"{self.address}/latest/{path}"
        request = urllib.request.Request(url, method=method, headers=headers or {})
        with self._open(request, timeout=TIMEOUT) as response:
            return response.read(4096).decode("utf-8", "replace").strip()
