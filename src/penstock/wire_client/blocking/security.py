"""The TLS and SASL settings of a client as one value.

`security_from_settings` reads Kafka's settings under the names of the Java client and of librdkafka. An unknown
security setting is refused, never ignored: a user who sets a cipher or a revocation list must not believe that it is in
force. Must not know: sockets. Invariants: a value is hashable and can be pickled (it is sent to Spark's workers and is
a key of connection caches). Its repr shows no secret. Files are read when a connection is made, not when settings are
read.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.wire_client.requests.errors import UnsupportedClientSetting
from penstock.wire_client.requests.sasl import MECHANISMS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM_ENDINGS = (".pem", ".crt", ".cer")
_PEM_BEGIN = "-----BEGIN "


@dataclass(frozen=True)
class ClientSecurity:
    """Certificates and keys are PEM: the text itself, or the path of a file."""

    protocol: str = "PLAINTEXT"
    ca: str | None = None
    """Trusted certificates, also as a directory of hashed certificates. None: the machine's own."""
    certificate: str | None = field(default=None, repr=False)
    """The client's certificate chain, which may contain the key."""
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    verifies_certificate: bool = True
    verifies_hostname: bool = True
    tls_versions: tuple[str, ...] = ()
    """Allowed versions; empty: the ssl module decides."""
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def ssl_context(self) -> ssl.SSLContext:
        """Reads the files. Raises UnsupportedClientSetting, which names the bad one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verifies_certificate and self.verifies_hostname
        if not self.verifies_certificate:
            context.verify_mode = ssl.CERT_NONE
        if self.tls_versions:
            allowed = [TLS_VERSIONS[name] for name in self.tls_versions]
            context.minimum_version, context.maximum_version = min(allowed), max(allowed)
        if self.ca is None:
            context.load_default_certs()
        else:
            self._load_ca(context, self.ca)
        if self.certificate is not None:
            self._load_own(context, self.certificate)
        return context

    @staticmethod
    def _load_ca(context: ssl.SSLContext, ca: str) -> None:
        try:
            if _is_pem_text(ca):
                context.load_verify_locations(cadata=ca)
            elif os.path.isdir(ca):
                context.load_verify_locations(capath=ca)
            else:
                context.load_verify_locations(cafile=ca)
        except (OSError, ValueError) as error:
            raise UnsupportedClientSetting(
                f"the trusted certificates in {_place(ca)} cannot be used: {_reason(error)}; give PEM"
            ) from error

    def _load_own(self, context: ssl.SSLContext, certificate: str) -> None:
        def no_password() -> str:
            # Otherwise OpenSSL would ask on the terminal.
            raise ValueError("the key is encrypted, but ssl.key.password is not set")

        password = no_password if self.key_password is None else self.key_password
        try:
            with _as_file(certificate) as chain, _as_file(self.key) as key:
                assert chain is not None
                context.load_cert_chain(chain, key, password)
        except (OSError, ValueError) as error:
            places = _place(certificate) + (f" with the key in {_place(self.key)}" if self.key else "")
            raise UnsupportedClientSetting(
                f"the client's certificate in {places} cannot be used: {_reason(error)}; give PEM, "
                "the chain and its private key"
            ) from error


PLAINTEXT = ClientSecurity()


def _is_pem_text(text: str) -> bool:
    return _PEM_BEGIN in text


def _place(pem: str) -> str:
    return "the settings" if _is_pem_text(pem) else f"'{pem}'"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def _as_file(pem: str | None) -> Iterator[str | None]:
    """A path for PEM text, since OpenSSL reads only files. The file is private to this user and deleted afterwards."""
    if pem is None or not _is_pem_text(pem):
        yield pem
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        yield file.name


# -- settings ---------------------------------------------------------------------------


def security_from_settings(settings: Mapping[str, str]) -> ClientSecurity:
    """Reads the security settings among Kafka's client settings.

    Raises UnsupportedClientSetting, which names the setting, its value and what is supported.
    """
    given = {name: value for name, value in settings.items() if value is not None and _is_about_security(name)}
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise UnsupportedClientSetting(f"{unknown[0]} is not supported: {_WHY_NOT.get(unknown[0], _WHY_NOT_KNOWN)}")
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise UnsupportedClientSetting(
            f"security.protocol={given['security.protocol']} is not supported: give one of {', '.join(PROTOCOLS)}"
        )
    mechanism, username, password = _sasl(given) if protocol.startswith("SASL_") else (None, None, None)
    if not protocol.endswith("SSL"):
        return ClientSecurity(protocol, sasl_mechanism=mechanism, username=username, password=password)
    certificate, key = _own_certificate(given)
    return ClientSecurity(
        protocol,
        ca=_trusted(given),
        certificate=certificate,
        key=key,
        key_password=given.get("ssl.key.password"),
        verifies_certificate=_boolean(given, "enable.ssl.certificate.verification"),
        verifies_hostname=_verifies_hostname(given),
        tls_versions=_tls_versions(given),
        sasl_mechanism=mechanism,
        username=username,
        password=password,
    )


_KNOWN = frozenset(
    (
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "enable.ssl.certificate.verification",
    )
)
_PEM_STORES = "keystores with a password are not read; give PEM files (ssl.{}store.type=PEM, with ssl.{}store.location)"
_WHY_NOT = {
    "ssl.truststore.password": _PEM_STORES.format("trust", "trust"),
    "ssl.keystore.password": _PEM_STORES.format("key", "key"),
    "ssl.cipher.suites": "this machine's OpenSSL decides on the ciphers",
    "ssl.crl.location": "certificates are not checked for revocation",
}
_WHY_NOT_KNOWN = "this client supports TLS with PEM files and SASL " + ", ".join(MECHANISMS)


def _is_about_security(name: str) -> bool:
    # Settings of unsupported mechanisms have no effect on the others.
    return name.startswith(("security.", "ssl.", "sasl.", "enable.ssl.")) and not name.startswith(
        ("sasl.kerberos.", "sasl.oauthbearer.")
    )


def _first(given: Mapping[str, str], *names: str) -> str | None:
    """The value of synonymous settings. Raises UnsupportedClientSetting if they differ."""
    values = {name: given[name] for name in names if name in given}
    if len(set(values.values())) > 1:
        raise UnsupportedClientSetting(f"{' and '.join(values)} contradict each other: give only one of them")
    return next(iter(values.values()), None)


def _boolean(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "true").lower()
    if value not in ("true", "false"):
        raise UnsupportedClientSetting(f"{name}={given[name]} is neither true nor false")
    return value == "true"


def _verifies_hostname(given: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    value = given.get(name, "https").strip().lower()
    if value not in ("https", "none", ""):
        raise UnsupportedClientSetting(f"{name}={given[name]} is not supported: give https, or none to turn it off")
    return value == "https"


def _tls_versions(given: Mapping[str, str]) -> tuple[str, ...]:
    named = given.get("ssl.protocol", "TLS")
    if named != "TLS" and named not in TLS_VERSIONS:
        raise UnsupportedClientSetting(f"ssl.protocol={named} is not supported: give one of TLS, TLSv1.2, TLSv1.3")
    enabled = tuple(part.strip() for part in given.get("ssl.enabled.protocols", "").split(",") if part.strip())
    for version in enabled:
        if version not in TLS_VERSIONS:
            raise UnsupportedClientSetting(
                f"ssl.enabled.protocols has {version}, which is not supported: give some of {', '.join(TLS_VERSIONS)}"
            )
    return enabled


# -- certificates -----------------------------------------------------------------------


def _trusted(given: Mapping[str, str]) -> str | None:
    _check_store(given, "trust")
    location = _first(given, "ssl.truststore.location", "ssl.ca.location")
    text = _first(given, "ssl.truststore.certificates", "ssl.ca.pem")
    if location and text:
        raise UnsupportedClientSetting("trusted certificates are given as a file and as text: give only one of them")
    return text or (None if location == "probe" else location) or None


def _own_certificate(given: Mapping[str, str]) -> tuple[str | None, str | None]:
    _check_store(given, "key")
    certificate = _first(
        given,
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.certificate.location",
        "ssl.certificate.pem",
    )
    key = _first(given, "ssl.keystore.key", "ssl.key.location", "ssl.key.pem")
    if key and not certificate:
        raise UnsupportedClientSetting(
            "a private key is given without its certificate: set ssl.certificate.location (or ssl.keystore.location)"
        )
    return certificate or None, key or None


def _check_store(given: Mapping[str, str], which: str) -> None:
    """Refuses stores that are not PEM. Java's default type is JKS; a name with the ending of PEM files also counts."""
    location = given.get(f"ssl.{which}store.location")
    kind = given.get(f"ssl.{which}store.type")
    if kind is None and location is not None and not location.lower().endswith(_PEM_ENDINGS):
        raise UnsupportedClientSetting(
            f"ssl.{which}store.location={location} is taken for a JKS store, which is not supported: "
            f"give a PEM file and set ssl.{which}store.type=PEM (keytool -exportcert -rfc, or openssl pkcs12, make one)"
        )
    if kind is not None and kind.upper() != "PEM":
        raise UnsupportedClientSetting(f"ssl.{which}store.type={kind} is not supported: only PEM is")


# -- SASL -------------------------------------------------------------------------------

_MODULES = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.$-]+)|([=;]))""")


def _sasl(given: Mapping[str, str]) -> tuple[str, str, str]:
    """(mechanism, user name, password)."""
    mechanism = _first(given, "sasl.mechanism", "sasl.mechanisms")
    allowed = ", ".join(MECHANISMS)
    if mechanism is None:
        raise UnsupportedClientSetting(
            f"sasl.mechanism is not set, and its default GSSAPI is not supported: give one of {allowed}"
        )
    if mechanism not in MECHANISMS:
        raise UnsupportedClientSetting(f"sasl.mechanism={mechanism} is not supported: give one of {allowed}")
    username, password = given.get("sasl.username"), given.get("sasl.password")
    if "sasl.jaas.config" in given:
        if username is not None or password is not None:
            raise UnsupportedClientSetting("sasl.jaas.config and sasl.username/sasl.password are given: give only one")
        username, password = _jaas(given["sasl.jaas.config"], mechanism)
    if not username or password is None:
        raise UnsupportedClientSetting(
            f"sasl.mechanism={mechanism} needs a user name and a password: set sasl.username and sasl.password, "
            "or sasl.jaas.config"
        )
    return mechanism, username, password


def _jaas(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """Parses one login module with its options: `org.apache...PlainLoginModule required username="u" password="p";`

    Errors never repeat the text, because it has the password.
    """
    tokens = _jaas_tokens(text)
    module = tokens[0].rpartition(".")[2] if tokens else ""
    if module not in _MODULES:
        raise UnsupportedClientSetting(
            f"sasl.jaas.config names the login module '{module}', which is not supported: "
            f"give one of {', '.join(_MODULES)}"
        )
    if mechanism not in _MODULES[module]:
        raise UnsupportedClientSetting(f"sasl.jaas.config is for {module}, but sasl.mechanism is {mechanism}")
    options = tokens[2:-1]
    if tokens[-1] != ";" or len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise UnsupportedClientSetting(
            'sasl.jaas.config must have the form: LoginModule required username="..." password="...";'
        )
    values = dict(zip(options[::3], options[2::3], strict=True))
    return values.get("username"), values.get("password")


def _jaas_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UnsupportedClientSetting(
                f"sasl.jaas.config cannot be parsed at character {at + 1}: check its quotes and the final ;"
            )
        quoted = found[1] if found[1] is not None else found[2]
        tokens.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else found[3] or found[4])
        at = found.end()
    return tokens
