"""The OpenAPI 3.1 description, built from the operations and structs that serve the requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from penstock.gateway.http.operations import JSON, Operation
from penstock.gateway.http.shapes import Error

_PARAMETER = re.compile(r"\{(\w+)\}")
_PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9._-]+$", "minLength": 1, "maxLength": 249},
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "group": {"type": "string", "minLength": 1, "maxLength": 249, "pattern": "^[^/\\u0000-\\u001f\\u007f]+$"},
    "instance": {"type": "string", "pattern": "^[a-zA-Z0-9._-]+$", "minLength": 1, "maxLength": 200},
    "broker": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
# The last entry is created by an operation; the others are path parameters that lead to it.
_SUPPLIES = {
    "publish": {"topic": "$request.path.topic"},
    "createTopic": {"cluster": "$request.path.cluster", "topic": "$response.body#/topic_name"},
    "createInstance": {"group": "$request.path.group", "instance": "$response.body#/instance_id"},
    "setGroupOffsets": {"group": "$request.path.group"},
}
_ERROR_REF = {"$ref": "#/components/schemas/Error"}
# Statuses of every operation: unknown query parameters, callers on other machines, an Accept header that cannot be
# served, an unreachable cluster, overload.
_ANY_TIME = (400, 403, 406, 429, 500, 501, 503)


def describe(operations: Iterable[Operation], version: str, cluster_id: str) -> dict[str, Any]:
    rows = list(operations)
    kinds: list[type] = [Error]
    for row in rows:
        kinds += [kind for kind in (row.body, *row.answers.values()) if kind is not None and kind not in kinds]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    # A record has one of these fields, and a body is a batch or one event. A struct cannot express that.
    for name in ("ProduceRecord", "PartitionRecord"):
        components[name]["oneOf"] = [{"required": [field]} for field in ("value", "payload")]
    for name in ("ProduceRequest", "PartitionProduceRequest"):
        components[name]["oneOf"] = [{"required": [field]} for field in ("records", "value", "payload")]
    known = dict(zip(kinds, schemas, strict=True))
    path_schemas = {**_PATH_SCHEMAS, "cluster": {"type": "string", "enum": [cluster_id]}}
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, known, _links(row, rows), path_schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock HTTP",
            "version": version,
            "description": "Publish and read records, and describe topics and groups. "
            "Requests and answers follow Confluent's REST proxy v2 and v3 where it has them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name} for name in dict.fromkeys(row.tag for row in rows)],
        "paths": paths,
        "components": {"schemas": components},
    }


def _links(row: Operation, rows: list[Operation]) -> dict[str, Any]:
    """Links from an operation to the operations on what it creates."""
    supplied = _SUPPLIES.get(row.name, {})
    made = next(reversed(supplied), "")
    links = {}
    for other in rows:
        wanted = _PARAMETER.findall(other.path)
        if made in wanted:
            parameters = {name: supplied[name] for name in wanted if name in supplied}
            links[other.name] = {"operationId": other.name, "parameters": parameters}
    return links


def _operation(
    row: Operation,
    schemas: dict[type, dict[str, Any]],
    links: dict[str, Any],
    path_schemas: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": [row.tag],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": path_schemas[name]}
                for name in _PARAMETER.findall(row.path)
            ),
            *(
                {"name": query.name, "in": "query", "description": query.doc, "schema": query.schema}
                for query in row.query
            ),
        ],
        "responses": {str(status): _answer(status, kind, row, schemas) for status, kind in row.answers.items()},
    }
    if links:
        described["responses"][str(next(iter(row.answers)))]["links"] = links
    if row.body is not None:
        content = {media_type: {"schema": schemas[row.body]} for media_type in row.body_types}
        described["requestBody"] = {"required": row.body_required, "content": content}
    for status in sorted({*row.refusals, *_ANY_TIME}):
        described["responses"][str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {JSON: {"schema": _ERROR_REF}},
        }
    return described


def _answer(status: int, kind: type | None, row: Operation, schemas: dict[type, dict[str, Any]]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if kind is not None:
        described["content"] = {media_type: {"schema": schemas[kind]} for media_type in row.answer_types}
    return described
