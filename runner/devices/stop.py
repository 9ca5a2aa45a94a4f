"""Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed."""

import os
import signal
import sys


class StopSignal:
    """Turns the first signal into a request to stop after the current segment; a second Ctrl-C quits.

    SIGHUP stays ignored where it is, as under nohup.
    """

    def __init__(self):
        self.received = 0

    def __enter__(self):
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self.previous = {number: signal.signal(number, self.receive) for number in numbers}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number, _):
        if self.received and number == signal.SIGINT:
            os._exit(128 + number)
        print("\nstopping after this segment; Ctrl-C again quits at once", file=sys.stderr, flush=True)
        self.received = number
