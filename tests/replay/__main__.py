"""``python -m tests.replay record LEVEL`` makes the corpus of a level anew (a new level only: those that are there never change);
``python -m tests.replay check`` holds the code against all of them."""

from __future__ import annotations

import sys

from tests.replay.corpus import FOLDER, differences, path_of, write

HISTORIES, ENTRIES = 20, 1000


def main(arguments: list[str]) -> int:
    """0: done, or all as recorded."""
    if arguments[:1] == ["record"]:
        from tests.replay.histories import history

        level = int(arguments[1])
        path = path_of(level)
        write(path, [history(1000 * level + seed, ENTRIES) for seed in range(HISTORIES)])
        print(f"{path.name}: {HISTORIES * ENTRIES} entries, {path.stat().st_size} bytes")
        return 0
    found = [f"{path.name}: {where}" for path in sorted(FOLDER.glob("level-*.zst")) for where in differences(path)]
    print("\n".join(found) or "as recorded")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
