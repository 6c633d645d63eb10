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
]
