"""The engines that can serve an attempt: the version each has loaded, and how many attempts it serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncopd.records import Version


@dataclass
class Engines:
    """Engines by name. `loads` outlives a lost engine, whose attempts still have to come back as failed."""

    versions: dict[str, Version] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Attempts admitted and not yet at the end of their episode."""
        return sum(self.loads.values())

    @property
    def newest(self) -> Version | None:
        return max(self.versions.values(), default=None)

    def ready(self, engine: str, version: Version) -> None:
        known = self.versions.get(engine, version)
        assert version >= known, f"engine {engine} served version {known} and now says {version}"
        self.versions[engine] = version

    def least_loaded(self, oldest: int) -> str | None:
        """Return the engine with the fewest attempts among those of step `oldest` or newer."""
        able = [name for name, version in self.versions.items() if version.step >= oldest]
        return min(able, key=lambda name: (self.loads.get(name, 0), -self.versions[name].step, name), default=None)

    def serve(self, engine: str) -> Version:
        """Count one more attempt on `engine`; return the version it starts with."""
        self.loads[engine] = self.loads.get(engine, 0) + 1
        return self.versions[engine]

    def release(self, engine: str) -> None:
        self.loads[engine] -= 1

    def forget(self) -> None:
        """Forget them all: nothing is rolling, and each has to say anew what it serves."""
        self.versions.clear()
        self.loads.clear()
