"""A digital twin of an LLM serving lane.

    import twin
    twin.predict("tp4", k=9).cells[0].step_ms.mean

Everything not exported here is private and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from twin.api import load_lane, predict
    from twin.errors import TwinError
    from twin.lane.lane import Lane
    from twin.planning.predict import Cell, Interval, Prediction

_WHERE = {
    "predict": "twin.api", "load_lane": "twin.api", "Lane": "twin.lane.lane", "Cell": "twin.planning.predict",
    "Interval": "twin.planning.predict", "Prediction": "twin.planning.predict", "TwinError": "twin.errors",
}  # fmt: skip

__all__ = ["Cell", "Interval", "Lane", "Prediction", "TwinError", "__version__", "load_lane", "predict"]


def __getattr__(name: str) -> Any:
    # Names resolve on first use, so that `import twin` costs nothing and `twin --help` stays quick.
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'twin' has no attribute {name!r}")
