"""Things that are hard to send: importable in workers, so that it is their own behaviour that is tested."""

import os
import sys
import time


def _misbehave(how):
    if how == "raise":
        raise ValueError("refuses to travel")
    if how == "exit":
        sys.exit(7)
    if how == "die":
        os._exit(9)
    if how == "hang":
        while True:
            time.sleep(1)


class BadDeparture:
    """Misbehaves when it is pickled."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        _misbehave(self.how)
        return BadDeparture, (self.how,)


class BadArrival:
    """Misbehaves when it is unpickled in another process than the one that made it."""

    def __init__(self, how):
        self.how = how
        self.home = os.getpid()

    def __setstate__(self, state):
        self.__dict__.update(state)
        if os.getpid() != self.home:
            _misbehave(self.how)


class TwoArguments(Exception):
    """Its pickle cannot be opened: `__init__` is called with the message alone."""

    def __init__(self, name, number):
        super().__init__(f"{name} has {number}")
        self.name = name
        self.number = number


class KeywordOnly(Exception):
    def __init__(self, *, reason):
        super().__init__(reason)
        self.reason = reason


class HoldsLock(Exception):
    """Cannot be pickled at all."""

    def __init__(self, message):
        super().__init__(message)
        import threading

        self.lock = threading.Lock()


class NoMessage(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class NoNotes(Exception):
    """Like a frozen dataclass: nothing can be set on it."""

    def __setattr__(self, name, value):
        raise AttributeError(f"cannot set {name}")


class Falsy(Exception):
    """Like an exception that is a collection, and empty."""

    def __len__(self):
        return 0


class Dies(Exception):
    def __reduce__(self):
        sys.exit(5)


class NotEvenAnError(BaseException):
    pass


class Plain:
    """Travels well."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Plain) and self.value == other.value

    __hash__ = None
