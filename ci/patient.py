"""A kernel client that notices every answer.

The asynchronous sockets of pyzmq can miss the arrival of a message: the answer
lies there, and the wait for it goes on until its time is over.  Cells with
widgets suffer most: about one in thirty waits for its whole time limit.  This
client waits in short slices and looks anew after each.
"""

from __future__ import annotations

import time
from queue import Empty

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from traitlets import Type

__all__ = ["PatientClient"]

_SLICE = 0.2  # seconds


class _Channel(AsyncZMQSocketChannel):
    async def get_msg(self, timeout: float | None = None) -> dict:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic()))
            try:
                return await super().get_msg(timeout=left)
            except Empty:
                if end is not None and time.monotonic() >= end:
                    raise


class PatientClient(AsyncKernelClient):
    """Drop-in for jupyter_client's own; chosen by ``AsyncKernelManager.client_class``."""

    shell_channel_class = Type(_Channel)
    iopub_channel_class = Type(_Channel)
    control_channel_class = Type(_Channel)
