"""The errors between a client and a broker, besides error codes in answers (`ApiError`).

WireClientError
+-- BrokerUnreachable         no request with an effect was sent
|   +-- UnknownHost           this machine cannot resolve the host name
|   `-- NotKafka              the server there speaks another protocol
+-- ConnectionLost            sent, but not answered: the request may have taken effect
+-- RequestTimedOut           the same
+-- Overloaded                refused before anything was sent: a bound of the client is reached
+-- AuthenticationFailed      TLS or SASL: one side could not authenticate; a retry does not help
+-- UnsupportedClientSetting  a security setting that this client does not support
+-- OffsetOutOfRange          the log does not have the offset (any more)
+-- LogTruncated              records that the log had are gone from its end, and others may have their offsets
+-- TopicRecreated            the name now belongs to another topic
`-- FetchStalled              no records arrived in all the allowed time

All of them can be pickled, because their arguments are the constructor's.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode

from penstock.model.errors import ApiError, ErrorCode, PenstockError


class WireClientError(PenstockError):
    pass


class BrokerUnreachable(WireClientError):
    pass


class UnknownHost(BrokerUnreachable):
    pass


class NotKafka(BrokerUnreachable):
    pass


class ConnectionLost(WireClientError):
    pass


class RequestTimedOut(WireClientError):
    """`unanswered`: the sentence without the timeout of this single request."""

    def __init__(self, sentence: str, unanswered: str = "") -> None:
        super().__init__(sentence)
        self.unanswered = unanswered


class Overloaded(WireClientError):
    pass


class AuthenticationFailed(WireClientError):
    pass


class UnsupportedClientSetting(WireClientError):
    pass


class OffsetOutOfRange(WireClientError):
    def __init__(self, tp: tuple[str, int], wanted: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(tp, wanted, log_start_offset, log_end_offset)
        self.tp = tp
        self.wanted = wanted
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __str__(self) -> str:
        topic, partition = self.tp
        return (
            f"offset {self.wanted} is outside {topic}-{partition}: it begins at {self.log_start_offset} "
            f"and ends before {self.log_end_offset}"
        )


class LogTruncated(WireClientError):
    """`end_offset`: up to here the log is what it was."""

    def __init__(self, tp: tuple[str, int], end_offset: int, wanted_end: int, leader_epoch: int) -> None:
        super().__init__(tp, end_offset, wanted_end, leader_epoch)
        self.tp = tp
        self.end_offset = end_offset
        self.wanted_end = wanted_end
        self.leader_epoch = leader_epoch

    def __str__(self) -> str:
        topic, partition = self.tp
        return (
            f"{topic}-{partition} was truncated to offset {self.end_offset}: of the records up to leader epoch "
            f"{self.leader_epoch} those before offset {self.wanted_end} are wanted"
        )


class TopicRecreated(WireClientError):
    def __init__(self, topic: str, wanted_id: bytes, found_id: bytes) -> None:
        super().__init__(topic, wanted_id, found_id)
        self.topic = topic
        self.wanted_id = wanted_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"topic '{self.topic}' was deleted and created again: its id is {_uuid(self.found_id)}, "
            f"not {_uuid(self.wanted_id)}, so offsets from before mean nothing"
        )


class FetchStalled(WireClientError):
    """`broker`: the known part of "1 at host:port"."""

    def __init__(self, tp: tuple[str, int], position: int, end: int, broker: str, waited_s: float, reason: str) -> None:
        super().__init__(tp, position, end, broker, waited_s, reason)
        self.tp = tp
        self.position = position
        self.end = end
        self.broker = broker
        self.waited_s = waited_s
        self.reason = reason

    def __str__(self) -> str:
        topic, partition = self.tp
        return (
            f"{topic}-{partition}: no records from broker {self.broker} at offset {self.position} (reading up to "
            f"{self.end}) for {self.waited_s:.1f} s: {self.reason}"
        )


class NoSuchTopic(ApiError):
    """The topic is missing from the cluster's metadata, which is final."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _uuid(topic_id: bytes) -> str:
    """The id as Kafka prints it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def error_code(number: int) -> ErrorCode:
    """The error code. A code that is newer than this client becomes UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, message: str | None = None) -> None:
    if number:
        raise ApiError(error_code(number), message or None)
