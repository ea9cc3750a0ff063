"""Many keys of one cache, asked for by many processes: python _shared_cache.py DIRECTORY ROUNDS ID.

Who finds a package missing makes a fake one, slowly, as a compiler would. Prints, for each round,
1 if this process made the package.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from pathlib import Path

from torchkiln.runtime.cache._cache import ExecutableCache


def main() -> None:
    directory, rounds, number = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(int(number))
    cache = ExecutableCache(directory / "cache", 10**9)
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
        assert values["content"] == hashlib.sha256(content).hexdigest(), turn
    print(*made, flush=True)


if __name__ == "__main__":
    main()
