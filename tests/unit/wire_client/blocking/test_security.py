"""Kafka's security settings, by the names of the Java client and of librdkafka."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path

import pytest

from penstock.wire_client.blocking.security import PLAINTEXT, ClientSecurity, security_from_settings
from penstock.wire_client.requests.errors import UnsupportedClientSetting

TLS = Path(__file__).parent / "tls"
CERTIFICATE, KEY, ENCRYPTED_KEY = (str(TLS / f"{name}.pem") for name in ("certificate", "key", "key_encrypted"))
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="s3cr3t";'


def test_nothing_said_is_plaintext() -> None:
    assert security_from_settings({}) == PLAINTEXT
    assert security_from_settings({"fetch.min.bytes": "1", "bootstrap.servers": "a:1"}) == PLAINTEXT
    assert not PLAINTEXT.uses_tls
    assert not PLAINTEXT.uses_sasl


def test_java_names() -> None:
    security = security_from_settings(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": SCRAM,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": CERTIFICATE,
            "ssl.keystore.type": "pem",
            "ssl.keystore.certificate.chain": Path(CERTIFICATE).read_text(),
            "ssl.keystore.key": Path(KEY).read_text(),
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.2, TLSv1.3",
        }
    )
    assert (security.sasl_mechanism, security.username, security.password) == ("SCRAM-SHA-512", "alice", "s3cr3t")
    assert security.uses_tls
    assert security.uses_sasl
    assert security.ca == CERTIFICATE
    assert not security.verifies_hostname
    context = security.ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1


def test_librdkafka_names() -> None:
    security = security_from_settings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "",
            "ssl.ca.location": CERTIFICATE,
            "ssl.certificate.location": CERTIFICATE,
            "ssl.key.location": ENCRYPTED_KEY,
            "ssl.key.password": "throw-away",
            "enable.ssl.certificate.verification": "false",
        }
    )
    assert (security.sasl_mechanism, security.username, security.password) == ("PLAIN", "alice", "")
    assert security.ssl_context().verify_mode is ssl.CERT_NONE


def test_what_goes_to_workers_and_into_logs() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": SCRAM}
    security = security_from_settings(settings)
    assert pickle.loads(pickle.dumps(security)) == security
    assert hash(security) == hash(security_from_settings(settings))
    assert "s3cr3t" not in repr(security)
    assert "alice" in repr(security)
    assert "s3cr3t" not in repr(ClientSecurity(certificate="a chain, and its key s3cr3t"))


@pytest.mark.parametrize(
    ("options", "username", "password"),
    [
        ('username="a" password="b";', "a", "b"),
        ("username=a password=b;", "a", "b"),
        ("username='a b'\n  password='say \\'x\\' = \";\"'  ;  ", "a b", "say 'x' = \";\""),
        ('password=";" username="=" tokenauth="false";', "=", ";"),
        ('username="back\\\\slash" password="\\"";', "back\\slash", '"'),
    ],
)
def test_jaas(options: str, username: str, password: str) -> None:
    text = f"kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required {options}"
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text}
    security = security_from_settings(settings)
    assert (security.username, security.password) == (username, password)


SASL = {"security.protocol": "SASL_PLAINTEXT"}
PLAIN = {**SASL, "sasl.mechanism": "PLAIN"}
PLAIN_MODULE = "a.PlainLoginModule required "


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not supported: give one of PLAINTEXT"),
        (SASL, "sasl.mechanism is not set, and its default GSSAPI"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not supported: give one of PLAIN"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.scope": "x"}, "OAUTHBEARER is not supported"),
        ({**PLAIN, "sasl.mechanisms": "SCRAM-SHA-256"}, "contradict"),
        (PLAIN, "needs a user name and a password"),
        ({**PLAIN, "sasl.username": "u"}, "needs a user name and a password"),
        ({**PLAIN, "sasl.jaas.config": SCRAM}, "for ScramLoginModule, but sasl.mechanism is PLAIN"),
        ({**PLAIN, "sasl.jaas.config": "com.sun.Krb5LoginModule required;"}, "'Krb5LoginModule', which is not"),
        ({**PLAIN, "sasl.jaas.config": PLAIN_MODULE + 'username="u" password="p"'}, "must have the form"),
        ({**PLAIN, "sasl.jaas.config": PLAIN_MODULE + 'username="u" password="p;'}, "its quotes"),
        ({**PLAIN, "sasl.jaas.config": PLAIN_MODULE + 'username: "u";'}, "cannot be parsed at character"),
        ({**PLAIN, "sasl.jaas.config": ""}, "login module ''"),
        ({**PLAIN, "sasl.jaas.config": SCRAM, "sasl.username": "u"}, "give only one"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x/trust.jks"}, "JKS store, which is not supported"),
        ({"ssl.truststore.password": "x"}, "ssl.truststore.password is not supported"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type=PKCS12 is not supported"),
        ({"ssl.cipher.suites": "X"}, "ssl.cipher.suites is not supported: this machine's OpenSSL"),
        ({"ssl.engine.location": "X"}, "ssl.engine.location is not supported: this client supports TLS with PEM"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "has TLSv1.1"),
        ({"security.protocol": "SSL", "ssl.protocol": "SSLv3"}, "ssl.protocol=SSLv3"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldap"}, "give https, or none"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "maybe"}, "neither true nor false"),
        ({"security.protocol": "SSL", "ssl.key.location": KEY}, "without its certificate"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/a.pem", "ssl.ca.pem": "-----BEGIN "}, "as a file and as"),
    ],
)
def test_what_is_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(UnsupportedClientSetting, match=complaint) as refused:
        security_from_settings(settings)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("security", "complaint"),
    [
        (ClientSecurity("SSL", ca="/nowhere.pem"), "'/nowhere.pem' cannot be used: No such file"),
        (ClientSecurity("SSL", ca=KEY), "key.pem' cannot be used"),
        (ClientSecurity("SSL", ca="-----BEGIN CERTIFICATE-----\nnonsense"), "in the settings cannot be used"),
        (ClientSecurity("SSL", certificate=CERTIFICATE), "certificate.pem' cannot be used"),
        (ClientSecurity("SSL", certificate=CERTIFICATE, key=ENCRYPTED_KEY), "ssl.key.password is not set"),
        (ClientSecurity("SSL", certificate=CERTIFICATE, key=ENCRYPTED_KEY, key_password="x"), "cannot be used"),
    ],
)
def test_files_that_will_not_do(security: ClientSecurity, complaint: str) -> None:
    with pytest.raises(UnsupportedClientSetting, match=complaint):
        security.ssl_context()
