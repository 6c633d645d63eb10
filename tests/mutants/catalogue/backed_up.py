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
        "sidecar/backup/default_quota.py",
        (
            "the default quota of a backup bounds other streams",
            "        if others:\n",
            "        if False:\n",
            "publishers that were never bounded are refused",
        ),
        (
            "the default quota of a backup takes another's place",
            "if image.default_quota.has_rates:",
            "if False:",
            "an operator's quota is gone",
        ),
        tests=_BESIDES,
    ),
    *rows(
        "sidecar/cli/backup_restore.py",
        (
            "one stream brings the default quota",
            "default_quota=image.default_quota if everything else NO_QUOTA,",
            "default_quota=image.default_quota,",
            "a stream restored beside others changes what they may be sent",
        ),
        (
            "a restore says that all is well",
            '    _say_quota(done.quota)\n    click.echo(f"{manifest.backup}: readable after {done.served_s:.1f} s, done after {done.took_s:.1f} s")\n    return 0 if done.is_whole else EXIT_PARTLY\n',
            "    _say_quota(done.quota)\n    return 0\n",
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
