"""docs/protocol.md is what the handlers say, and the handlers are what a broker advertises."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from support.clients.raw import RawClient

GENERATOR = Path(__file__).resolve().parents[3] / "tools" / "generate_protocol_page.py"


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("generate_protocol_page", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_committed_page_is_current(generator: ModuleType) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "run tools/generate_protocol_page.py"
    assert generator.main(["--check"]) == 0
    assert generator.main(["--unknown"]) == 2


def test_a_broker_advertises_what_the_page_lists(generator: ModuleType, penstock_broker: Broker) -> None:
    with RawClient(penstock_broker.port) as client:
        answer = client.call(Api.API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, 0)
    advertised = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    listed = {entry.key: (entry.min_version, entry.max_version) for entry in generator.entries() if entry.is_advertised}
    listed[Api.PRODUCE] = (0, listed[Api.PRODUCE][1])  # as its docstring says
    assert advertised == listed


def test_a_docstring_that_disagrees_with_its_class_is_refused(generator: ModuleType) -> None:
    module = ModuleType("disagrees", "DescribeCluster (key 60), versions 0-7.")
    declared = {"api": Api.DESCRIBE_CLUSTER, "min_version": 0, "max_version": 2, "__module__": "disagrees"}
    vars(module)["Handler"] = type("Handler", (), declared)
    with pytest.raises(ValueError, match=r"the docstring says .*7.*, the class .*2"):
        generator.read_entry(module)
