"""The temperature schedule."""


def temperature(step: int, *, t_min: float, t_max: float, steps: int) -> float:
    """Linear from t_max at step 0 towards t_min: t_min + (t_max - t_min) * remaining / steps.

    `remaining` counts the step itself, so t_min is never reached (0.408 is the last of 48 steps from 0.8 to 0.4);
    steps beyond the schedule keep its last value.
    """
    remaining = max(steps - step, 1)
    return t_min + (t_max - t_min) * remaining / steps
