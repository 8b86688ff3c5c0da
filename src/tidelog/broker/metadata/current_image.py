"""The image of the cluster as this broker has it now, and whoever follows it.

What changes it is above: the controller's own decisions, and what is read from the change log. It is replaced
as a whole, so whoever holds one keeps a consistent picture.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidelog.broker.metadata.change_log import Snapshot
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import MetadataRecord

Listener = Callable[[ClusterImage, ClusterImage, Sequence[MetadataRecord]], None]


class CurrentImage:
    """The newest image, and the number of the last change that it shows."""

    __slots__ = ("_listeners", "_on_told", "_waiting", "image", "sequence")

    def __init__(self, on_told: Callable[[], None]) -> None:
        """`on_told` is called after every change, when all listeners know of it."""
        self.image = ClusterImage()
        self.sequence = 0
        self._on_told = on_told
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def __repr__(self) -> str:
        return f"<CurrentImage {self.image!r} sequence={self.sequence}>"

    def listen(self, listener: Listener) -> None:
        """Call `listener(old_image, new_image, records)` after every change."""
        self._listeners.append(listener)

    def begin(self, image: ClusterImage, sequence: int) -> None:
        """Start with what was read before anybody listened."""
        image.check_invariants()
        self.image = image
        self.sequence = sequence

    def adopt(self, records: Sequence[MetadataRecord], sequence: int) -> None:
        """Move the image on to change number `sequence` and tell everybody here."""
        old = self.image
        self.image = old.apply(records)
        self.sequence = sequence
        self._tell(old, records)

    def skip_to(self, sequence: int) -> None:
        """Up to change number `sequence` nothing changed."""
        self.sequence = sequence
        self._tell_waiting()

    def replace(self, snapshot: Snapshot) -> None:
        """Adopt a whole snapshot; topics that are the same as before stay the same objects."""
        old = self.image
        loaded = ClusterImage(version=old.version).apply(snapshot.records)
        if not loaded.cluster_id:
            # The id came with the first commit of all, and cannot go.
            loaded = replace(loaded, cluster_id=old.cluster_id)
        topics = {
            name: before if (before := old.topics.get(name)) == topic and before is not None else topic
            for name, topic in loaded.topics.items()
        }
        self.image = replace(loaded, topics=topics)
        self.sequence = snapshot.sequence
        self._tell(old, snapshot.records)

    def catch_up(self, snapshot: Snapshot) -> None:
        """Adopt a snapshot that was read just now, unless the image shows all of it."""
        if snapshot.sequence != self.sequence or self.sequence == 0:
            self.replace(snapshot)

    def when_at(self, sequence: int, callback: Callable[[], None]) -> bool:
        """Call back when the image shows change number `sequence`; now, and True, if it does."""
        if self.sequence >= sequence:
            callback()
            return True
        self._waiting.append((sequence, callback))
        return False

    def _tell(self, old: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        try:
            for listener in self._listeners:
                listener(old, self.image, records)
        finally:
            self._on_told()
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for sequence, callback in waiting:
                self.when_at(sequence, callback)
