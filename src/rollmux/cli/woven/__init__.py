"""`rollmux demo`: two real jobs, each alone on nodes of its own, then woven on the nodes of one, on this machine."""
