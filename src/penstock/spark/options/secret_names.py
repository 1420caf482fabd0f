"""Names of settings and options whose values are secret, for Spark's redaction and for ours.

Spark itself knows passwords, tokens and the like (`spark.redaction.regex`). It does not know Kafka's names for keys and
logins. A pattern is found anywhere in a name, in any case, and is valid for Java and for Python.
"""

from __future__ import annotations

import re

SPARKS_OWN = "secret|password|token|access[.]?key|credential"
MORE_NAMES = r"jaas|keystore[.]key|keystore[.]certificate|[.]pem$|schemaregistry"
"""Kafka's names, which Spark does not know, and the URL of a schema registry: it may have a password."""

_SECRET_NAME = re.compile(f"{SPARKS_OWN}|{MORE_NAMES}", re.IGNORECASE)

REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
REDACTED_OPTIONS_DEFAULT = "(?i)url"
REDACTED_SETTINGS = "spark.redaction.regex"
REDACTED_SETTINGS_DEFAULT = f"(?i){SPARKS_OWN}"
REDACTED_TEXT = "spark.sql.redaction.string.regex"


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None
