"""Virtual time: the same objects as the live controller, driven by a heap instead of by clocks and sockets."""
