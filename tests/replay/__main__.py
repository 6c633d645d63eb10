"""``python -m tests.replay check`` holds the code against what was recorded. For a level that is new, ``record LEVEL`` writes what the
code that runs makes of the entries at it; what is recorded of others never changes. ``entries NAME`` makes histories anew.
"""

from __future__ import annotations

import sys

from tests.replay.corpus import ENTRIES, FOLDER, differences, path_of, record, write_entries


def main(arguments: list[str]) -> int:
    """0: done, or all as recorded."""
    match arguments:
        case ["entries", name]:
            from tests.replay.histories import WORLDS, history

            world, count, length = WORLDS[name]
            write_entries([history(seed, length, world) for seed in range(count)], ENTRIES[name])
            print(f"{ENTRIES[name].name}: {count * length} entries, {ENTRIES[name].stat().st_size} bytes")
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
