"""What the page asks, answered as JSON: the same functions as the command line, on texts that came over HTTP.

A setting arrives as the text that `twin explain` takes ("sidecar:k=5,placement.hot=330"). What a page may not do that a
terminal may: name files. Only parts and policy of a lane can be set, and a calibration is the lane's own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from twin.acceptance.traffic import traffic_names
from twin.board.controls import lane_options
from twin.errors import PolicyError, ReceiptError, TwinError, nearest
from twin.fitting.receipts import parse_receipts
from twin.lane.catalogue import load_lane, names
from twin.planning.explain import Explanation, explain
from twin.planning.residuals import residuals
from twin.planning.roofline import roofline
from twin.planning.scenario import Resolved, Scenario, command_line, parse_setting, resolve, scenario_toml
from twin.report.waterfall import label, sentences, waterfall_steps

MAX_SPEC_CHARS = 4000
MAX_RECEIPTS = 300
CURVE_KS = tuple(range(0, 13))
#: As the command line draws, so that the exported command prints the page's numbers.
SAMPLES = 1000
_SETTABLE = ("devices", "links", "checkpoint", "engine", "placement", "policy")


class Answers:
    """Answers for one catalogue. Settings are looked up once and kept, the least used forgotten."""

    def __init__(self, roots: Sequence[Path], *, seed: int = 0) -> None:
        self.roots, self.seed = tuple(roots), seed
        self._resolved = lru_cache(maxsize=64)(self._resolve)
        self._explained = lru_cache(maxsize=64)(self._explain)
        self._shown = lru_cache(maxsize=64)(self._side)

    def options(self) -> dict[str, Any]:
        """Lanes with their controls, and traffic classes; a lane that does not load is left out."""
        lanes = []
        for name in names("lanes", self.roots):
            try:
                lanes.append(lane_options(load_lane(name, self.roots)))
            except TwinError:
                continue
        return {
            "lanes": lanes,
            "traffic": traffic_names(self.roots),
            "rules": ["token", "block", "greedy"],
            "seed": self.seed,
        }

    def answer(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Predictions of the settings a and b (b may be missing), and why they differ."""
        started = time.perf_counter()
        specs = self._specs(query)
        found: dict[str, Any] = {side: self._shown(spec) for side, spec in zip("ab", specs, strict=False)}
        settings = [self._resolved(spec).setting for spec in specs]
        found["command"] = command_line(settings, self.seed)
        if len(specs) == 2:
            found["explanation"] = _explanation(self._explained(*specs))
        return found | {"ms": 1e3 * (time.perf_counter() - started)}

    def curve(self, query: Mapping[str, str]) -> dict[str, Any]:
        """tok/s of a stream against k, for each setting."""
        curves = {}
        for side, spec in zip("ab", self._specs(query), strict=False):
            one = self._resolved(spec)
            ks = CURVE_KS if one.lane.checkpoint.draft is not None else (0,)
            cells = [one.others(k=k) for k in ks]
            points = [
                {
                    "k": c.k,
                    "mean": c.tok_s_per_stream.mean,
                    "p05": c.tok_s_per_stream.p05,
                    "p95": c.tok_s_per_stream.p95,
                }
                for c in cells
            ]
            curves[side] = {"title": one.setting.title, "points": points}
        return curves

    def export(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The scenario file and the command line that reproduce what the page shows."""
        settings = [self._resolved(spec).setting for spec in self._specs(query)]
        title = " against ".join(setting.title for setting in settings)[:200]
        scenario = Scenario(schema_version=1, title=title, seed=self.seed, settings=settings)
        return {"toml": scenario_toml(scenario), "command": command_line(settings, self.seed)}

    def residuals(self, query: Mapping[str, str], text: str) -> dict[str, Any]:
        """A receipt table (CSV text, held for this answer only) against setting a's lane and the catalogue's others."""
        receipts = parse_receipts(text, where="the uploaded table")
        if len(receipts) > MAX_RECEIPTS:
            raise ReceiptError(
                f"the uploaded table has {len(receipts)} receipts; the page takes {MAX_RECEIPTS}. Use `twin validate`."
            )
        one = self._resolved(self._specs(query)[0])
        rows = residuals(receipts, self.roots, lane=one.lane)
        return {"rows": [row.to_dict() for row in rows], "left_out": len(receipts) - len(rows)}

    def _specs(self, query: Mapping[str, str]) -> list[str]:
        specs = [query[side] for side in "ab" if query.get(side)]
        if not query.get("a"):
            raise PolicyError("a is missing: expected a setting such as a=sidecar:k=5.")
        for spec in specs:
            if len(spec) > MAX_SPEC_CHARS:
                raise PolicyError(f"a setting of {len(spec)} characters; expected at most {MAX_SPEC_CHARS}.")
        return specs

    def _resolve(self, spec: str) -> Resolved:
        setting = parse_setting(spec)
        for text in setting.overrides:
            first = text.partition("=")[0].strip().removeprefix("lane.").partition(".")[0]
            if first not in _SETTABLE:
                raise PolicyError(f"{text!r}: the page sets parts of a lane only; {nearest(first, _SETTABLE)}")
        return resolve(setting, self.roots, seed=self.seed)

    def _explain(self, a: str, b: str) -> Explanation:
        return explain(self._resolved(a), self._resolved(b), seed=self.seed, samples=SAMPLES)

    def _side(self, spec: str) -> dict[str, Any]:
        one = self._resolved(spec)
        prediction = one.prediction.to_dict()
        cell = prediction["cells"][0]
        roof = roofline(one, seed=self.seed, samples=SAMPLES)
        return {
            "title": one.setting.title,
            "setting": one.setting.model_dump(),
            "resolved": {"traffic": cell["traffic"], "verification": cell["verification"], "k": cell["k"]},
            "spec": one.setting.spec(),
            "prediction": prediction,
            "labels": {name: label(name) for name in cell["breakdown_ms"]},
            "roofline": {"step_ms": roof.step_ms.mean, "fraction": roof.fraction.mean},
        }


def _explanation(found: Explanation) -> dict[str, Any]:
    bars = [{"from": start, "to": end} for _, start, end in waterfall_steps(found)]
    parts = found.to_dict()
    for part, bar in zip(parts["parts"], bars, strict=True):
        part["bar"], part["label"] = bar, label(part["mechanism"])
    return parts | {"sentences": sentences(found)}
