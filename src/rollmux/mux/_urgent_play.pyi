from rollmux.mux.compiled import Jobs, Rules

def urgent_play(
    jobs: Jobs, max_turns: int, limits_ms: tuple[float, ...] | None, rules: Rules, /
) -> tuple[tuple[float, ...], bool] | None: ...
