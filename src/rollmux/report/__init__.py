"""The results of simulated runs, to look at: one HTML file, and a trace for Chrome and Perfetto. Values only, no IO."""
