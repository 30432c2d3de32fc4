"""python -m tests.release.audit [--require]: known vulnerabilities of what is installed, by pip-audit.

pip-audit (extra `audit`) asks https://pypi.org/pypi/NAME/VERSION/json, or with `--service osv` https://api.osv.dev. Where neither can
be reached nothing is known: this then says NOT AUDITED, with the reason, and exits 0, or 2 with `--require`. It says
clean only when every installed distribution was found and asked about. Exit 1: a vulnerability.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

OWN = "twin-lane"
TIMEOUT_S = 300


def verdict(found: Mapping[str, Any]) -> tuple[str, int]:
    """What pip-audit's JSON means: a text and 0 (clean), 1 (vulnerable) or 2 (not everything was audited)."""
    listed = [d for d in found.get("dependencies", []) if d.get("name") != OWN]
    bad = [f"{d['name']} {d['version']}: {v['id']}, fixed in {', '.join(v.get('fix_versions') or ['no version yet'])}"
           for d in listed for v in d.get("vulns", [])]  # fmt: skip
    unknown = [f"{d['name']}: {d['skip_reason']}" for d in listed if "skip_reason" in d]
    unknown += [f"{d['name']}: no answer" for d in listed if "skip_reason" not in d and "vulns" not in d]
    if bad:
        return "VULNERABLE\n  " + "\n  ".join(bad + unknown), 1
    if not listed or unknown:
        more = [f"... and {len(unknown) - 3} more"] if len(unknown) > 3 else []
        return "NOT AUDITED\n  " + "\n  ".join([*unknown[:3], *more] or ["pip-audit listed nothing"]), 2
    return f"clean: {len(listed)} distributions asked about, no known vulnerability", 0


def audit(service: str) -> tuple[str, int]:
    """Run pip-audit once against a service; what it could not do is a reason, never a clean bill."""
    if importlib.util.find_spec("pip_audit") is None:
        return 'NOT AUDITED\n  pip-audit is not installed: pip install -e ".[audit]"', 2
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable",
               "--vulnerability-service", service, "--timeout", "10"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"NOT AUDITED\n  no answer of {service} in {TIMEOUT_S} s", 2
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return f"NOT AUDITED\n  {service}: {lines[-1][:300] if lines else f'exit {done.returncode}'}", 2
    return verdict(found)


def main() -> int:
    """Both services in turn, until one answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.audit", description=__doc__)
    parser.add_argument("--require", action="store_true", help="exit 2 when the audit could not be made")
    parser.add_argument("--service", choices=["pypi", "osv"], action="append")
    given = parser.parse_args()
    code = 2
    for service in given.service or ["pypi", "osv"]:
        text, code = audit(service)
        print(f"dependency audit ({service}): {text}")
        if code != 2:
            return code
    return code if given.require else 0


if __name__ == "__main__":
    sys.exit(main())
