"""Bugs in what goes with restored streams, in what is removed from stores of backups, and in the spans of backups and restores."""

from __future__ import annotations

from tests.mutants.mutant import rows

_BESIDES = ("tests/unit/backup/test_restored_besides.py",)

MUTANTS = [
    *rows(
        "sidecar/backup/cursors.py",
        (
            "a partition without bounds ends a restore",
            "            except LiftError as error:\n                return error\n",
            "            except KeyError as error:\n                return error\n",
            "all is restored, and the command says that it failed; no group goes on",
        ),
        (
            "a position that is not set is not said",
            'said[cursor.name] = refused or "; ".join(without)',
            "said[cursor.name] = refused",
            "a group begins anew in a partition, and nobody knows",
        ),
        (
            "a group that can't be set ends a restore",
            "        except LiftError as error:\n            return str(error)\n",
            "",
            "the groups behind it begin anew",
        ),
        tests=_BESIDES,
    ),
    *rows(
        "sidecar/backup/cluster_wide.py",
        (
            "the default quota of a backup bounds other streams",
            "        if others:\n",
            "        if False:\n",
            "publishers that were never bounded are refused",
        ),
        (
            "the default quota of a backup takes another's place",
            "if held is not None and (held.has_rates if isinstance(held, DefaultQuota) else held.change):",
            "if held is not None and isinstance(held, SessionTimes) and held.change:",
            "an operator's quota is gone",
        ),
        (
            "the session times of a backup take others' place",
            "if isinstance(held, DefaultQuota) else held.change):",
            "if isinstance(held, DefaultQuota) else 0):",
            "leaders are replaced after times that an operator had put right",
        ),
        (
            "a backup brings times that nobody has set",
            "times if times is not None and times.change else None",
            "times",
            "a restored cluster goes by the settings that one node of another had",
        ),
        tests=_BESIDES,
    ),
    *rows(
        "sidecar/cli/backup_restore.py",
        (
            "one stream brings the default quota",
            "wide=cluster_wide_of(image) if everything else NOTHING_WIDE,",
            "wide=cluster_wide_of(image),",
            "a stream restored beside others changes what they may be sent",
        ),
        (
            "a restore says that all is well",
            '    _say_settings(done.settings)\n    click.echo(f"{manifest.backup}: readable after {done.served_s:.1f} s, done after {done.took_s:.1f} s")\n    return 0 if done.is_whole else EXIT_PARTLY\n',
            "    _say_settings(done.settings)\n    return 0\n",
            "nobody looks what is left to do",
        ),
        tests=_BESIDES,
    ),
    *rows(
        "sidecar/backup/looking.py",
        (
            "a clock that is ahead ends a backup that runs",
            "    return min(now, newest + (RUNNING_AGE - NEWER_AGE))\n",
            "    return now\n",
            "a prune takes the pieces of a backup that is being made",
        ),
        (
            "the newest entry alone says what has died",
            "    return min(now, newest + (RUNNING_AGE - NEWER_AGE))\n",
            "    return newest + (RUNNING_AGE - NEWER_AGE)\n",
            "a backup of twelve hours loses its pieces to the next one's prune",
        ),
        tests=("tests/unit/backup/test_backup_files.py",),
    ),
    *rows(
        "liftpy/spark/pipelines/orphans.py",
        (
            "a clock that is ahead makes orphans",
            "by_s = min(time.time(), max((stat.st_mtime for _, stat in found), default=0.0))",
            "by_s = time.time()",
            "what another attempt is writing is taken away",
        ),
        tests=("tests/unit/spark/test_pipeline_archive.py",),
    ),
]
