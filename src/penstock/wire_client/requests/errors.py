"""What can go wrong between a client and a broker, besides an error code in an answer (`ApiError`).

WireClientError
+-- BrokerUnreachable         nothing was sent, or nothing that has an effect
|   +-- UnknownHost           no such name, as far as this machine can tell
|   `-- NotKafka              whoever listens there speaks another protocol
+-- ConnectionLost            sent and not answered: it may or may not have happened
+-- RequestTimedOut           likewise
+-- Overloaded                refused here, before anything was sent: a bound of the client is reached
+-- AuthenticationFailed      TLS or SASL: one side could not prove who it is; trying again does not help
+-- UnsupportedClientSetting  a security setting that this client cannot do as asked
+-- OffsetOutOfRange          the log does not hold the wanted offset (any more)
+-- TopicRecreated            the name now belongs to another topic
`-- FetchStalled              retried for as long as was allowed, and nothing came

Their arguments are what they say, so all of them can be pickled.
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
    """`unanswered`: what was asked of whom, without how long this one request was given."""

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
    """`broker` is as much of "1 at host:port" as is known."""

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
            f"{topic}-{partition}: nothing from broker {self.broker} at offset {self.position} (reading up to "
            f"{self.end}) for {self.waited_s:.1f} s: {self.reason}"
        )


class NoSuchTopic(ApiError):
    """The cluster's metadata say so, not a single broker: final."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _uuid(topic_id: bytes) -> str:
    """As Kafka prints it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def error_code(number: int) -> ErrorCode:
    """A code that is newer than this client is an unknown error, not a crash."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, message: str | None = None) -> None:
    if number:
        raise ApiError(error_code(number), message or None)
