"""Ctrl-C and SIGTERM."""

import os
import signal
import sys


class StopSignal:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after the current segment; a second Ctrl-C quits."""

    def __init__(self):
        self.received = 0

    def __enter__(self):
        self.previous = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number, _):
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        print("\nstopping after this segment; Ctrl-C again quits at once", file=sys.stderr, flush=True)
        self.received = number
