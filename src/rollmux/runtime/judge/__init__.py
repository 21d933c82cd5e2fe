"""Judge models: how likely a model finds each of the given answers, its layers streamed where room is short."""
