"""Jobs on a Ray cluster: `launcher` decides and remembers, `gateway` speaks to Ray, the rest runs on Ray's nodes."""
