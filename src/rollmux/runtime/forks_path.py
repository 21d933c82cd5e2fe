"""What a fork server imports first: it looks for modules where they are installed, not in the folder it stands in."""

import sys

sys.path[:] = [folder for folder in sys.path if folder]
