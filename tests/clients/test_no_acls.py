"""Administrators are told at once that there are no ACLs."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import admin

TIMEOUT_S = 600


def test_an_administrator_is_told_that_there_are_no_acls(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    acl = admin.AclBinding(
        admin.ResourceType.TOPIC,
        "t",
        admin.ResourcePatternType.LITERAL,
        "User:a",
        "*",
        admin.AclOperation.READ,
        admin.AclPermissionType.ALLOW,
    )
    with pytest.raises(confluent_kafka.KafkaException, match="No Authorizer is configured") as caught:
        client.create_acls([acl])[acl].result(TIMEOUT_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED
