"""python -m tests.reproduce: hashes of what commands print, to compare between Python versions, worker counts and machines."""

from __future__ import annotations

import hashlib
import subprocess
import sys

COMMANDS = (
    ("predict", "--lane", "tp4", "--k", "9", "-c", "1..16", "--json"),
    ("predict", "--lane", "sidecar", "--k", "5", "-c", "1,4", "--seed", "7", "--json"),
    ("predict", "--lane", "gb10x4-vllm", "--csv"),
    ("explain", "sidecar", "tp4", "--json"),
    ("schedule", "--lane", "sidecar", "--json"),
    ("union", "--checkpoint", "deepseek-v4.1-flash", "--tokens", "1,2,4", "--json"),
    ("simulate", "--lane", "sidecar", "-c", "2", "--requests", "8", "--json"),
    ("sweep", "--lane", "tp4", "--grid", "k=0..3", "--format", "csv"),
    ("sweep", "--lane", "tp4", "--grid", "k=0..3", "--format", "csv", "--workers", "2"),
    ("lanes", "--json"),
)


def main() -> int:
    """One line a command, then one hash of everything."""
    every = hashlib.sha256()
    for words in COMMANDS:
        done = subprocess.run([sys.executable, "-m", "twin.cli.main", *words], capture_output=True, check=False)
        if done.returncode:
            print(done.stderr.decode(), file=sys.stderr)
            return 1
        digest = hashlib.sha256(done.stdout).hexdigest()
        every.update(digest.encode())
        print(digest[:16], "twin", *words)
    print(every.hexdigest()[:16], f"all, Python {sys.version_info.major}.{sys.version_info.minor}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
