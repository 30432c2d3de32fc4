"""The lane as an OpenAI-compatible endpoint: the serving simulation's scheduler, driven by the clock on the wall."""
