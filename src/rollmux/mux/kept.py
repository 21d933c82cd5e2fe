"""A property that is found when it is first asked for, and kept: what the standard library has, without its lock.

Groups are made at nearly every event and asked for a few things each; up to Python 3.11 a lock is taken for each.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as kept
else:

    class kept:  # noqa: N801  used as a decorator
        """Kept in the object's own `__dict__`, under its own name, where it is found before this is asked."""

        def __init__(self, find):
            self._find = find
            self.__doc__ = find.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            found = instance.__dict__[self._name] = self._find(instance)
            return found


__all__ = ["kept"]
