"""The quotas that hold now: the newest metadata says whether there are any."""

from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.model.image import ClusterImage
from tidelog.model.ports import Clock

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization
    from tidelog.broker.requests.quotas import Quotas


class LiveQuotas:
    """Whoever serves requests keeps this, and reads `current`."""

    __slots__ = ("_authorization", "_clock", "_metadata", "_metrics", "_settings", "current")

    def __init__(
        self,
        metadata: Metadata,
        settings: LiveSettings,
        clock: Clock,
        authorization: "Authorization | None",
        metrics: Metrics,
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._authorization = authorization
        self._metrics = metrics
        #: None where nobody has a limit
        self.current: Quotas | None = None
        self.adopt(metadata.image)

    def adopt(self, image: ClusterImage) -> None:
        """Let the limits of this image, the newest one, hold from now on."""
        if not image.client_quotas:
            self.current = None
        elif self.current is not None:
            self.current.adopt(image)
        else:
            from tidelog.broker.requests.quotas import Quotas

            self.current = Quotas(
                self._metadata, self._settings, self._clock, self._authorization, self._metrics
            )

    def __repr__(self) -> str:
        return f"<LiveQuotas {self.current!r}>"
