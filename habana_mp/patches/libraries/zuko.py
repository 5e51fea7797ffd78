"""zuko solves differential equations: an adaptive solver shortens its steps until an error does not show."""

EXACT_FUNCTIONS = {"zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward")}
