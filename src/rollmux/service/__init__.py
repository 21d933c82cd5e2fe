"""The live controller around the `mux` machine: journal, leases by HTTP, launchers, tokens.

`Controller` has the rules and does no IO; `Host` gives it time and makes it durable; `app` speaks HTTP.
"""
