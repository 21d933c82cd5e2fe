"""Judge models: how likely a model finds each of the given answers, with layers that are streamed if room is short."""
