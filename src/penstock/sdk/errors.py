"""The errors of the client. Each has a sentence that says what to do.

ClientError(sentence, name)            name: Kafka's or librdkafka's name of the error, for programs
+-- BadSetting                         refused before anything was sent (also a ConfigError)
+-- Unreachable                        no broker answers
+-- TimedOut                           no answer in time: the request may have taken effect
+-- Refused                            the cluster refused the request
|   +-- UnknownTopic, TopicExists
|   +-- UnknownGroup, GroupNotEmpty
|   `-- NotAllowed                     authentication or authorisation
+-- DeliveryFailed                     a record was not acknowledged
+-- TransactionAborted                 the transaction failed and is aborted: begin it again
+-- ProducerFailed                     the producer is unusable: make a new one
|   `-- ProducerFenced                 another producer has started with the same transactional id
+-- CommitFailed                       the partitions now belong to another member
+-- NotPolled                          more than max_poll_interval_ms between two polls
`-- ClientClosed                       used after close
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.model.errors import ConfigError, PenstockError


class ClientError(PenstockError):
    def __init__(self, sentence: str, name: str = "") -> None:
        super().__init__(sentence)
        self.name = name


class BadSetting(ClientError, ConfigError):
    pass


class Unreachable(ClientError):
    def __init__(self, servers: str, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"no broker answers at {servers}{why}: check that it runs, and the address", "UNREACHABLE")
        self.servers = servers


class TimedOut(ClientError):
    pass


class Refused(ClientError):
    pass


class UnknownTopic(Refused):
    pass


class TopicExists(Refused):
    pass


class UnknownGroup(Refused):
    pass


class GroupNotEmpty(Refused):
    pass


class NotAllowed(Refused):
    pass


class DeliveryFailed(ClientError):
    pass


class TransactionAborted(ClientError):
    pass


class ProducerFailed(ClientError):
    pass


class ProducerFenced(ProducerFailed):
    pass


class CommitFailed(ClientError):
    pass


class NotPolled(ClientError):
    pass


class ClientClosed(ClientError):
    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} is closed: make a new one", "CLOSED")


TIMEOUTS = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
    )
)
_NO_CONNECTION = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE))

_KINDS: dict[int, type[Refused]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: UnknownTopic,
    KafkaError._UNKNOWN_TOPIC: UnknownTopic,
    KafkaError._UNKNOWN_PARTITION: UnknownTopic,
    KafkaError._NOENT: UnknownTopic,
    KafkaError.TOPIC_ALREADY_EXISTS: TopicExists,
    KafkaError.GROUP_ID_NOT_FOUND: UnknownGroup,
    KafkaError.NON_EMPTY_GROUP: GroupNotEmpty,
    KafkaError._AUTHENTICATION: NotAllowed,
    KafkaError.SASL_AUTHENTICATION_FAILED: NotAllowed,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: NotAllowed,
    KafkaError.GROUP_AUTHORIZATION_FAILED: NotAllowed,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: NotAllowed,
}
_STALE_MEMBER = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,
    )
)
_ADVICE: dict[int, str] = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic",
    KafkaError.INVALID_REPLICATION_FACTOR: "the cluster needs at least as many brokers as replicas",
    KafkaError.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "fewer replicas are in sync than min.insync.replicas requires",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "the group's other members do not use this assignment strategy",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction_timeout_ms is above transaction.max.timeout.ms of the brokers",
    KafkaError.UNSUPPORTED_VERSION: "the broker does not serve this request",
    KafkaError._UNSUPPORTED_FEATURE: "the broker does not serve this request",
    KafkaError._AUTO_OFFSET_RESET: "seek to an offset that exists, or set auto_offset_reset to earliest or latest",
}


def translate(
    error: KafkaError, doing: str, servers: str, *, is_down: bool = False, changes: bool = True
) -> ClientError:
    """`doing` opens the sentence ("cannot create topic x"). `is_down`: no broker has answered recently. `changes`: the
    request changes something, so that its outcome is unknown after a timeout."""
    code = error.code()
    if code in _NO_CONNECTION or (is_down and code in TIMEOUTS):
        return Unreachable(servers)
    if code in TIMEOUTS:
        unknown = "; the request may have taken effect" if changes else ""
        return TimedOut(f"{doing}: no answer in time{unknown}", error.name())
    if code == KafkaError._INVALID_ARG:
        return BadSetting(f"{doing}: {_reason(error)}", error.name())
    if code == KafkaError._MAX_POLL_EXCEEDED:
        return NotPolled(
            "too long between two polls, so the group reassigned the partitions: handle fewer records per poll "
            "(max_poll_records) or raise max_poll_interval_ms",
            error.name(),
        )
    if code in _STALE_MEMBER:
        return CommitFailed(
            f"{doing}: the partitions now belong to another member, which reads the records again", error.name()
        )
    kind = _KINDS.get(code, Refused)
    advice = _ADVICE.get(code, "")
    reason = f"there is no such topic or partition ({_name(error)})" if kind is UnknownTopic else _reason(error)
    return kind(f"{doing}: {reason}" + (f"; {advice}" if advice else ""), error.name())


def _reason(error: KafkaError) -> str:
    """The broker's message without a full stop, and Kafka's name of the error once."""
    said = error.str().removeprefix("Broker: ").removeprefix("Local: ").rstrip(". ")
    return said if _name(error) in said else f"{said} ({_name(error)})"


def _name(error: KafkaError) -> str:
    return error.name().lstrip("_")
