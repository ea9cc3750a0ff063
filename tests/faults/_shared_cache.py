"""Many keys of one cache, asked for at once: python _shared_cache.py DIRECTORY ROUNDS ID [HOW].

HOW is "unlocked" for a cache that does harm: nobody waits for anybody.

Who finds a package missing makes a fake one, slowly, as a compiler would. Prints, for each round,
1 if this process made the package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torchkiln.runtime.cache._cache import ExecutableCache


def unlocked(cache: ExecutableCache, directory: Path) -> None:
    """Let the cache say what lies there without waiting for those who write."""

    @contextlib.contextmanager
    def holding(key: str) -> Iterator[Path | None]:
        package = directory / key
        yield package if package.exists() else None

    cache.holding = holding
    cache.store = lambda key, package, _: shutil.copy(package, directory / key)


def main() -> None:
    directory, rounds, number = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(int(number))
    cache = ExecutableCache(directory / "cache", 10**9)
    if sys.argv[4:] == ["unlocked"]:
        unlocked(cache, directory)
    own = directory / f"package-{number}.pt2"
    print("ready", flush=True)
    sys.stdin.readline()
    made = []
    for turn in range(rounds):
        key = hashlib.sha256(f"round {turn}".encode()).hexdigest()
        with cache.holding(key) as package:
            if package is None:
                content = os.urandom(random.randrange(1000, 60_000))
                own.write_bytes(content)
                time.sleep(random.uniform(0, 0.003))
                cache.store(key, own, f"made by {number}")
            else:
                content = package.read_bytes()
            made.append(int(package is None))
            # Whoever comes while the entry is held sees what its maker wrote.
            cache.remember(key, {"graph": key, "content": hashlib.sha256(content).hexdigest()})
        values = cache.lookup(key)
        assert values is not None
        if sys.argv[4:] == ["unlocked"]:
            continue
        assert values["content"] == hashlib.sha256(content).hexdigest(), turn
    print(*made, flush=True)


if __name__ == "__main__":
    main()
