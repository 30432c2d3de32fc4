"""Typed access to the keys of a Hugging Face `config.json`, with messages that name file and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twin.errors import IngestError
from twin.ingest.numbers import whole

#: largest believable value of any dimension in a config
_MAX = 10**8


@dataclass(frozen=True)
class Keys:
    """A config with typed access; errors name the file and the key."""

    raw: dict[str, Any]
    where: str

    def number(self, *names: str, default: int | None = None, minimum: int = 0) -> int:
        """The first of `names` that is there, as a whole number. Raises IngestError when none is and no default."""
        for name in names:
            if self.raw.get(name) is not None:
                value = whole(self.raw[name], self.where, name, minimum=minimum)
                if value is not None and value > _MAX:
                    raise IngestError(f"{self.where}: {name} is {value}; no model has that.")
                return value or 0
        if default is None:
            raise IngestError(
                f"{self.where}: the key {' or '.join(names)} is missing; is it the config.json of a language model?"
            )
        return default

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers, empty when it is missing."""
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > 4096:
            raise IngestError(f"{self.where}: {name} should be a list of whole numbers.")
        return [whole(v, self.where, f"{name}[{i}]") or 0 for i, v in enumerate(value)]

    def words(self, name: str) -> list[str]:
        """A list of texts, empty when it is missing."""
        value = self.raw.get(name)
        return [str(v) for v in value[:4096]] if isinstance(value, list) else []
