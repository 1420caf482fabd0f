"""SCRAM credentials through a stock admin client: kept over a restart, refused as Kafka refuses them."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import ScramCredentialSet
from penstock.core.metadata.scram import Deletion, Upsertion, alter_credentials
from penstock.model.errors import ErrorCode
from penstock.testing import Broker


def upsert(user: str, mechanism: ScramMechanism, iterations: int = 8192) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, iterations), b"secret", b"salt")


def test_credentials_are_set_described_kept_and_removed(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        changes = [upsert("ann", ScramMechanism.SCRAM_SHA_256), upsert("ann", ScramMechanism.SCRAM_SHA_512, 4096)]
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(10)
    with Broker(data=str(tmp_path)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        described = admin.describe_user_scram_credentials(["ann"])["ann"].result(10)
        assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_256, 8192),
            (ScramMechanism.SCRAM_SHA_512, 4096),
        ]
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            removal = UserScramCredentialDeletion("ann", mechanism)
            admin.alter_user_scram_credentials([removal])["ann"].result(10)
        with pytest.raises(KafkaException, match="does not exist"):
            admin.describe_user_scram_credentials(["ann"])["ann"].result(10)


def test_who_names_nobody_asks_for_all_users() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert admin.describe_user_scram_credentials().result(10) == {}
        changes = [upsert(user, ScramMechanism.SCRAM_SHA_256) for user in ("ann", "bob")]
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(10)
        described = admin.describe_user_scram_credentials().result(10)
        assert {user: len(each.scram_credential_infos) for user, each in described.items()} == {"ann": 1, "bob": 1}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([Deletion("ann", 1)], ErrorCode.RESOURCE_NOT_FOUND),
        ([Upsertion("", 1, 4096, b"s", b"p")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([Upsertion("ann", 3, 4096, b"s", b"p")], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([Upsertion("ann", 1, 4095, b"s", b"p")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([Upsertion("ann", 1, 16385, b"s", b"p")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([Upsertion("ann", 1, 4096, b"s", b"p"), Deletion("ann", 1)], ErrorCode.DUPLICATE_RESOURCE),
        ([Upsertion("ann", 1, 4096, b"s", b"p"), Deletion("ann", 2)], ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_one_refusal_refuses_all_of_a_user(changes: list[Deletion | Upsertion], code: ErrorCode) -> None:
    records, outcomes = alter_credentials(MetadataImage(), [*changes, Upsertion("bob", 2, 4096, b"s", b"p")])
    refusal = outcomes[changes[0].user]
    assert refusal is not None
    assert refusal.code is code
    assert outcomes["bob"] is None
    assert len(records) == 1


def test_no_password_is_kept_but_what_proves_it() -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salt", 4096)
    (record,), _ = alter_credentials(MetadataImage(), [Upsertion("user", 1, 4096, b"salt", salted)])
    assert isinstance(record, ScramCredentialSet)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    assert record.stored_key == hashlib.sha256(client_key).hexdigest()
    assert record.server_key == hmac.digest(salted, b"Server Key", "sha256").hex()
    assert salted.hex() not in repr(record)
