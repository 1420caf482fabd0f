"""Shared by all of Confluent's v3 API: resources with a kind and links, and lists of resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.http import shapes
from penstock.gateway.http.consumers import base_url
from penstock.gateway.http.errors import Refused
from penstock.gateway.http.operations import Endpoint, Operation, Proxy, answer
from penstock.wire_client.requests.metadata import ClusterMetadata

CLUSTER = "/v3/clusters/{cluster}"
TOPIC = f"{CLUSTER}/topics/{{topic}}"
GROUP = f"{CLUSTER}/consumer-groups/{{group}}"
BODY_REFUSALS = (400, 404, 408, 413, 415, 422)
ONE, MANY = shapes.Resource, shapes.ResourceList


class Links:
    """URLs of resources, with the address that the caller used."""

    def __init__(self, request: Request, cluster_id: str) -> None:
        self.root = f"{base_url(request)}/v3/clusters"
        self.cluster = f"{self.root}/{cluster_id}"
        self._prefix = f"crn:///kafka={cluster_id}"

    def resource(self, kind: str, path: str, **fields: object) -> dict[str, Any]:
        name = self._prefix + "".join(
            f"/{kind_name}={value}" for kind_name, value in zip(*[iter(path.split("/"))] * 2, strict=False) if kind_name
        )
        url = f"{self.cluster}/{path}" if path else self.cluster
        return {"kind": kind, "metadata": {"self": url, "resource_name": name}, **fields}

    def related(self, path: str) -> dict[str, str]:
        return {"related": f"{self.cluster}/{path}"}

    def listing(self, kind: str, path: str, data: Iterable[dict[str, Any]]) -> Response:
        url = f"{self.cluster}/{path}" if path else self.root
        return answer({"kind": kind, "metadata": {"self": url, "next": None}, "data": list(data)})


async def open_cluster(proxy: Proxy, request: Request) -> tuple[ClusterMetadata, Links]:
    """Raises Refused(404) for another cluster's id."""
    info = await proxy.cluster.describe()
    if request.path_params.get("cluster", info.cluster_id) != info.cluster_id:
        raise Refused(404, f"Cluster not found: this is {info.cluster_id}")
    return info, Links(request, info.cluster_id)


def look(path: str, name: str, summary: str, tag: str, endpoint: Endpoint, shape: type) -> Operation:
    refusals = (404, 422) if "{group}" in path else (404,) if "{" in path else ()
    return Operation("GET", path, name, summary, tag, endpoint, {200: shape}, refusals=refusals)
