"""Who may be elected to lead a partition: an in-sync replica or an eligible one (KIP-966), nobody else.

Others lack records that were acknowledged. Where `unclean.leader.election.enable` says so anybody may be, rather than
nobody. Must not know: brokers, how a controller decides.
"""

from __future__ import annotations

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import PartitionChanged
from penstock.sim.history import Violation

UNCLEAN = "unclean.leader.election.enable"


def check_elected(image: MetadataImage, change: PartitionChanged) -> None:
    """`image`: as it is before the change."""
    topic = image.topics_by_id[bytes.fromhex(change.topic_id)]
    before = topic.partitions[change.index]
    if change.leader in (before.leader, *before.isr, *before.elr, *before.last_known_elr):
        return
    if before.is_reassigning and change.replicas is not None and change.leader in (change.isr or ()):
        return  # it has just come into sync, and with that the move to it ends
    if not may_be_unclean(image, topic.name):
        raise Violation(
            "an elected leader was in sync or eligible",
            f"{topic.name}-{change.index}: {change.leader} is to lead; in sync were {list(before.isr)}, eligible "
            f"{list(before.elr)}",
        )


def may_be_unclean(image: MetadataImage, topic: str) -> bool:
    return any(settings.get(UNCLEAN) == "true" for (_, name), settings in image.configs.items() if name in (topic, ""))
