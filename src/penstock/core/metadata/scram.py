"""Decisions of the controller about SCRAM credentials. The image is not changed here.

All changes of a user in one request succeed or fail together.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import MetadataRecord, ScramCredentialRemoved, ScramCredentialSet
from penstock.model.errors import ApiError, ErrorCode

MECHANISMS = {1: "sha256", 2: "sha512"}
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384


@dataclass(frozen=True, slots=True)
class Deletion:
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class Upsertion:
    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def alter_credentials(
    image: MetadataImage, changes: Sequence[Deletion | Upsertion]
) -> tuple[list[MetadataRecord], dict[str, ApiError | None]]:
    """Return records for the users whose changes are valid, and the answer for each user, in order."""
    mentions = Counter((change.user, change.mechanism) for change in changes)
    outcomes: dict[str, ApiError | None] = {change.user: None for change in changes}
    records: dict[str, list[MetadataRecord]] = {user: [] for user in outcomes}
    for change in changes:
        try:
            if mentions[change.user, change.mechanism] > 1:
                raise ApiError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            records[change.user].append(_decide(image, change))
        except ApiError as error:
            outcomes[change.user] = outcomes[change.user] or error
    agreed = [record for user, error in outcomes.items() if error is None for record in records[user]]
    return agreed, outcomes


def _decide(image: MetadataImage, change: Deletion | Upsertion) -> MetadataRecord:
    if not change.user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    digest = MECHANISMS.get(change.mechanism)
    if digest is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Deletion):
        if change.mechanism not in image.scram.get(change.user, {}):
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return ScramCredentialRemoved(change.user, change.mechanism)
    if change.iterations < MIN_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    client_key = hmac.digest(change.salted_password, b"Client Key", digest)
    return ScramCredentialSet(
        change.user,
        change.mechanism,
        salt=change.salt.hex(),
        stored_key=hashlib.new(digest, client_key).hexdigest(),
        server_key=hmac.digest(change.salted_password, b"Server Key", digest).hex(),
        iterations=change.iterations,
    )
