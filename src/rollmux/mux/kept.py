"""A property that is computed when it is first asked for, and kept: `functools.cached_property` without its lock.

Groups are made at nearly every event, and a few properties of each are asked for; up to Python 3.11
`cached_property` takes a lock for each.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as kept
else:

    class kept:  # noqa: N801  used as a decorator
        """Keeps the value in the object's `__dict__` under the property's name, where Python finds it from then on."""

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
