"""Follows the settings of topics while a pipeline copies their records, in a thread of its own.

A cluster that is away, or a right that is missing, does not stop the pipeline: what was the trouble is told
with its progress, until it is over.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from tidelog.client.faults import ClientFault
from tidelog.pipelines.file_store import FileStore
from tidelog.pipelines.topic_settings import OVERWRITE, Memory, SettingsCopy, bring_in_step, write_memory

log = logging.getLogger(__name__)

#: how often the source is asked
LOOK_SECONDS = 30.0


class SettingsInStep:
    """Looks at the sources now and then; `close` ends that."""

    def __init__(
        self,
        copies: Sequence[SettingsCopy],
        memory: Memory,
        store: FileStore,
        checkpoint: str,
        look_seconds: float | None = None,
    ) -> None:
        # What differs from now on has changed while we ran: the source says how it is to be.
        self._copies = [replace(copy, mode=OVERWRITE) for copy in copies]
        self._memory = memory
        self._store = store
        self._checkpoint = checkpoint
        self._look_seconds = LOOK_SECONDS if look_seconds is None else look_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-settings", daemon=True)
        #: for people: the last change, or what is in the way
        self.message = ""

    def start(self) -> None:
        if self._copies:
            self._thread.start()

    def close(self) -> None:
        """Safe to call again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._look_seconds):
            self.look()

    def look(self) -> None:
        """Bring every copy in step."""
        for copy in self._copies:
            try:
                found = bring_in_step(copy, self._memory)
                if found is not None and (found.values or found.removed):
                    write_memory(self._store, self._checkpoint, self._memory)
                    self._tell(f"settings of {copy.to}: {found.words()}, as {copy.topic} has them")
                elif "not in step" in self.message:
                    self.message = ""
            except ClientFault as fault:
                self._tell(f"settings of {copy.to} are not in step with {copy.topic}: {fault}")

    def _tell(self, message: str) -> None:
        if message != self.message:
            log.warning("%s", message)
        self.message = message
