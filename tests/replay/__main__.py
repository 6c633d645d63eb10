"""``python -m tests.replay check`` holds the code against what was recorded. For a level that is new, ``record LEVEL`` writes what the
code that runs makes of the entries at it; what is recorded of others never changes. ``entries`` makes the histories anew,
``entries LEVEL`` those that came with a level.

Level 1 was recorded by the code before there were levels.
"""

from __future__ import annotations

import sys

from tests.replay.corpus import ENTRIES, FOLDER, LATER, differences, path_of, record, write_entries

HISTORIES, LENGTH = 20, 1000
LATER_HISTORIES, LATER_LENGTH = 2, 500


def main(arguments: list[str]) -> int:
    """0: done, or all as recorded."""
    match arguments:
        case ["entries"]:
            from tests.replay.histories import history

            write_entries([history(seed, LENGTH) for seed in range(HISTORIES)])
            print(f"{ENTRIES.name}: {HISTORIES * LENGTH} entries, {ENTRIES.stat().st_size} bytes")
            return 0
        case ["entries", level]:
            from tests.replay.histories import LATER_WORLDS, history

            path, world = LATER[int(level)], LATER_WORLDS[int(level)]
            write_entries([history(seed, LATER_LENGTH, world) for seed in range(LATER_HISTORIES)], path)
            print(f"{path.name}: {LATER_HISTORIES * LATER_LENGTH} entries, {path.stat().st_size} bytes")
            return 0
        case ["record", level]:
            record(int(level))
            print(f"{path_of(int(level)).name}: {path_of(int(level)).stat().st_size} bytes")
            return 0
    levels = sorted(int(path.stem.removeprefix("level-")) for path in FOLDER.glob("level-*.digests"))
    found = [where for level in levels for where in differences(level)]
    print("\n".join(found) or f"as recorded: levels {levels}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
