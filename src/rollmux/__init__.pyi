"""What the package offers at its top, for type checkers: `connect` is loaded late."""

from rollmux.client import connect as connect

__version__: str
