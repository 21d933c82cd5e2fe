"""The live page: one file that a browser opens at `/`."""
