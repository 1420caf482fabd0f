from __future__ import annotations

import pytest

from penstock.gateway.http.operations import is_accepted

JSON = "application/json"


@pytest.mark.parametrize(
    "header",
    [
        "*/*",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/*",
        "text/html, application/xhtml+xml, */*;q=0.8",
        "text/csv, application/json;q=0.1",
        "*/*;q=0, application/json",
    ],
)
def test_json_fits(header: str) -> None:
    assert is_accepted(JSON, header)


@pytest.mark.parametrize(
    "header",
    [
        "text/csv",
        "text/*",
        "application/jsonp",
        "application/vnd.kafka.avro.v2+json",
        "application/json;q=0",
        "application/json; q=0.000, */*",
        "application/*;q=0, */*",
        ",;",
    ],
)
def test_json_does_not_fit(header: str) -> None:
    assert not is_accepted(JSON, header)
