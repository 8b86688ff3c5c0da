"""The lab's network between clients and brokers."""

import asyncio
import threading

import pytest

from tidelog.lab.network import Network


def test_its_loop_is_made_where_no_interrupt_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of making one left a traceback behind the lab's last words."""
    makers: list[threading.Thread] = []
    make = asyncio.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        makers.append(threading.current_thread())
        return make()

    monkeypatch.setattr(asyncio, "new_event_loop", noted)
    Network().close()
    assert [thread.name for thread in makers] == ["lab-network"]
