"""What a simulated run came to, to look at: one HTML file, and a trace for Chrome and Perfetto. Values only, no IO."""
