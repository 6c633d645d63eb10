"""Simulated disks with real files. The simulator knows which data a power cut leaves.

A node works on real files, so that its code for files runs as it ships. The module keeps the bytes of each file and the names of
each folder as of their last flush. ``power_cut`` puts in the folder's place what these say, with drawn parts of what was not
flushed. Calls fail, take long, or write less than they were given, as the faults say.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine.scheduler import NS_PER_US, Process, Scheduler

_FLUSH_NS = (100 * NS_PER_US, 900 * NS_PER_US)
_WRITE_NS = 8 * NS_PER_US
_SIZE_BYTES = 1 << 40
_BLOCK_BYTES, _FILES = 4096, 1 << 26
_Usage = namedtuple("_Usage", "total used free")  # the class of shutil is private

real_open, real_close, real_write, real_writev = os.open, os.close, os.write, os.writev
real_pread, real_pwrite, real_fsync, real_fdatasync, real_ftruncate = os.pread, os.pwrite, os.fsync, os.fdatasync, os.ftruncate
real_listdir, real_rename, real_unlink = os.listdir, os.rename, os.unlink
real_disk_usage, real_statvfs = shutil.disk_usage, os.statvfs
real_dup = os.dup


class Disk:
    """Disk of one host. It outlives the processes."""

    def __init__(self, scheduler: Scheduler, name: str, folder: Path) -> None:
        self.scheduler = scheduler
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, mode=0o750, exist_ok=True)
        self._device = folder.stat().st_dev
        self.loses_power = True
        """False if the history has no power cut: the disk then records nothing of what is durable."""
        self._files: dict[int, bytearray] = {}
        """Inode -> what the last flush of the file has made durable."""
        self._rewritten: set[int] = set()
        """Inodes of files that were not only appended to since."""
        self._made: set[int] = set()
        """Inodes of files that processes have created or written."""
        self._folders: dict[int, dict[str, int]] = {}
        """Inode of a folder -> the names that its last flush has made durable, with their inodes."""
        self._lives = 0
        self.fail_one_in = 0
        """One of this number of flushes and writes fails."""
        self.fail_next_flushes = 0
        """This number of flushes of segment files fails next."""
        self.fail_next_reads = 0
        """This number of reads of segment files fails next."""
        self.next_failures: list[tuple[str, str, int]] = []
        """(Call, text in the path, error number): each fails the next call of this kind for a path with the text."""
        self.fails_for = ""
        """Writes and flushes fail for files whose path contains this text. '': for none."""
        self.keeps_unflushed = True
        """True if a power cut may keep a part of what was not flushed."""
        self.is_full = False
        self.takes_new_files = True
        """False: the disk has no free inodes, so that no process can create a file. Files that exist can grow."""
        self.short_one_in = 0
        """One of this number of writes is shorter than requested."""
        self.slow_ns = 0
        """A flush takes up to so much longer."""
        self.hang_ns = 0
        """Each flush takes so much longer."""
        self.delay_ns = 0
        """The next flush takes so much longer."""
        self.log_delay_ns = 0
        """The next flush of a segment file takes so much longer."""
        self.read_ns = 0
        """Each read of a segment file takes so much longer."""
        self.slow_reads = 0
        """Number of reads that have taken longer."""
        self.lies_one_in = 0
        """One of this number of flushes reports success and does nothing."""
        self.failures = 0
        """Errors and lies until now."""
        self.is_damaged = False
        """A bit was flipped, or the data is lost."""
        self.was_full = False
        self.was_slow = False

    # ---- what a process does ---------------------------------------------------------------------------------------------
    def _draws(self, one_in: int) -> bool:
        return one_in > 0 and self.scheduler.random.randrange(one_in) == 0

    def _fails_for(self, descriptor: int) -> bool:
        return bool(self.fails_for) and self.fails_for in os.readlink(f"/proc/self/fd/{descriptor}")

    def fail_if_planned(self, call: str, path: Any) -> None:
        """Raise the error of ``next_failures``. ``path``: path or file descriptor."""
        if self.next_failures:
            name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
            for failure in self.next_failures:
                if failure[0] == call and failure[1] in name:
                    self.next_failures.remove(failure)
                    self._fail(call)
                    raise OSError(failure[2], os.strerror(failure[2]), name)

    def flush(self, descriptor: int) -> None:
        """Simulate ``fsync`` and ``fdatasync``."""
        self.fail_if_planned("flush", descriptor)
        took_ns = self.scheduler.draw_int(*_FLUSH_NS) + (self.scheduler.draw_int(0, self.slow_ns) if self.slow_ns else 0)
        self.was_slow = self.was_slow or self.slow_ns > 0
        self.scheduler.elapsed_ns += took_ns + self.delay_ns + self.hang_ns
        self.delay_ns = 0
        if self.log_delay_ns and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            self.scheduler.elapsed_ns += self.log_delay_ns
            self.log_delay_ns = 0
        self.scheduler.counters["flushes"] += 1
        if self._draws(self.fail_one_in) or self._fails_for(descriptor):
            self._fail("flush")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._draws(self.lies_one_in):
            self._fail("lost flush")
            return
        found = os.fstat(descriptor)
        if self.fail_next_flushes and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            self.fail_next_flushes -= 1
            self._fail("flush")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        is_folder = stat.S_ISDIR(found.st_mode)
        if self.loses_power and found.st_dev == self._device:
            if is_folder:
                self._keep_names(descriptor, found.st_ino)
            else:
                self._keep(descriptor, found)
        self.scheduler.trace("flush", self.name, "names" if is_folder else found.st_size)

    def _keep_names(self, descriptor: int, inode: int) -> None:
        names = {}
        with os.scandir(descriptor) as entries:
            for entry in entries:
                names[entry.name] = entry.inode()
        self._folders[inode] = dict(sorted(names.items()))

    def _keep(self, descriptor: int, found: os.stat_result) -> None:
        inode = found.st_ino
        known = self._files.setdefault(inode, bytearray())
        if inode in self._rewritten or len(known) > found.st_size:
            self._rewritten.discard(inode)
            known.clear()
        reading = real_open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(known) < found.st_size:
                piece = real_pread(reading, found.st_size - len(known), len(known))
                if not piece:
                    break
                known += piece
        finally:
            real_close(reading)

    def write(self, descriptor: int, pieces: Any) -> int:
        """Simulate ``write`` and ``writev``."""
        self.fail_if_planned("write", descriptor)
        self.scheduler.elapsed_ns += _WRITE_NS
        self.scheduler.counters["writes to files"] += 1
        self.note_made(descriptor)
        if self._draws(self.fail_one_in) or self._fails_for(descriptor):
            self._fail("write")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.is_full:
            self.was_full = True
            self.scheduler.counters["writes to a full disk"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._draws(self.short_one_in):
            data = b"".join(pieces)
            if len(data) > 1:
                self.scheduler.counters["short writes"] += 1
                self.failures += 1
                return real_write(descriptor, data[: self.scheduler.random.randrange(1, len(data))])
        return real_writev(descriptor, pieces)

    def check_new_file(self, path: Any, flags: int) -> None:
        """Simulate an ``open`` that may create a file."""
        if not self.takes_new_files and flags & os.O_CREAT and not os.path.lexists(path):
            self.scheduler.counters["new files without an inode"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        """Simulate ``pread``."""
        self.fail_if_planned("read", descriptor)
        if self.fail_next_reads and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            self.fail_next_reads -= 1
            self._fail("read")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.read_ns and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            self.scheduler.elapsed_ns += self.read_ns
            self.slow_reads += 1
        return real_pread(descriptor, size_bytes, offset)

    def usage(self) -> Any:
        """Return what ``shutil.disk_usage`` says about it."""
        free = 0 if self.is_full else _SIZE_BYTES // 2
        return _Usage(_SIZE_BYTES, _SIZE_BYTES - free, free)

    def file_system(self) -> Any:
        """Return what ``os.statvfs`` says about it."""
        free_files = _FILES // 2 if self.takes_new_files else 0
        blocks = self.usage().free // _BLOCK_BYTES
        return SimpleNamespace(f_frsize=_BLOCK_BYTES, f_bavail=blocks, f_files=_FILES, f_favail=free_files)

    def note_made(self, descriptor: int) -> None:
        """A process has created or written the file."""
        self._made.add(os.fstat(descriptor).st_ino)

    def rewritten(self, descriptor: int) -> None:
        """The file was changed before its end."""
        self._rewritten.add(os.fstat(descriptor).st_ino)

    def _fail(self, what: str) -> None:
        self.failures += 1
        self.scheduler.counters[f"failed: {what}"] += 1
        self.scheduler.trace("disk fails", self.name, what)

    @property
    def is_faulty(self) -> bool:
        """True if calls fail, take longer or do nothing at present."""
        numbers = self.fail_one_in, self.fail_next_flushes, self.fail_next_reads, self.short_one_in, self.lies_one_in
        times_ns = self.slow_ns, self.hang_ns, self.delay_ns, self.log_delay_ns, self.read_ns
        return any((*numbers, *times_ns, self.next_failures, self.fails_for, self.is_full, not self.takes_new_files))

    def unflushed(self) -> list[str]:
        """Return the files and folders of processes whose name or content a power cut may lose, relative to the folder."""
        return self._unflushed(self.folder) if self.loses_power else []

    def _unflushed(self, folder: Path) -> list[str]:
        durable, found = self._folders.get(folder.stat().st_ino, {}), list[str]()
        for name in sorted(real_listdir(folder)):
            path = folder / name
            inode = path.lstat().st_ino
            is_known = inode in self._made or inode in self._folders
            if is_known and durable.get(name) != inode:
                found.append(f"the name {path.relative_to(self.folder)}")
            if path.is_dir():
                found += self._unflushed(path)
            elif is_known and self._files.get(inode, b"") != path.read_bytes():
                found.append(str(path.relative_to(self.folder)))
        return found

    def restorable(self) -> list[str]:
        """Return the removed files and folders whose name a power cut may bring back, relative to the folder."""
        folders = [self.folder, *(path for path in sorted(self.folder.rglob("*")) if path.is_dir())]
        return [
            str((folder / name).relative_to(self.folder))
            for folder in folders
            for name in self._folders.get(folder.stat().st_ino, ())
            if not (folder / name).exists()
        ]

    # ---- what happens to it ----------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """Make the disk fast and error-free."""
        self.fail_one_in = self.short_one_in = self.slow_ns = self.delay_ns = self.hang_ns = self.lies_one_in = 0
        self.log_delay_ns = self.read_ns = 0
        self.fail_next_flushes = self.fail_next_reads = 0
        self.is_full = False
        self.takes_new_files = True
        self.fails_for = ""
        self.next_failures.clear()

    def _retire(self) -> Path:
        """Move the files away, so that maps and file descriptors of ended processes stay valid."""
        self._lives += 1
        old = self.folder.with_name(f"{self.folder.name}.{self._lives}")
        self.folder.rename(old)
        return old

    def power_cut(self) -> None:
        """Keep only flushed data and random parts of the rest. No process uses the disk."""
        assert self.loses_power
        self.scheduler.trace("power cut", self.name)
        old = self._retire()
        self.folder.mkdir(mode=0o750)
        self._rebuild(old, self.folder)
        shutil.rmtree(old)

    def _rebuild(self, old: Path, new: Path) -> None:
        inode = old.stat().st_ino
        durable = self._folders.pop(inode, {})
        there = {name: (old / name).lstat() for name in sorted(real_listdir(old))}
        by_inode = {found.st_ino: name for name, found in there.items()}
        kept: dict[str, str] = {}
        older: dict[str, bytes] = {}
        for name, found in there.items():
            if durable.get(name) == found.st_ino or (name not in durable and self._draws(2)):
                kept[name] = name
        for name, file_inode in durable.items():
            if name in kept:
                continue
            if file_inode in by_inode:  # renamed, and the folder was not flushed
                kept[name] = by_inode[file_inode]
            elif file_inode in self._files and self._draws(2):  # replaced or removed, and the folder was not flushed
                older[name] = bytes(self._files[file_inode])
            elif name in there:
                kept[name] = name
        for name, content in older.items():
            self._write(new / name, content)
        for name, source in kept.items():
            found = there[source]
            if stat.S_ISDIR(found.st_mode):
                (new / name).mkdir(mode=0o750)
                self._rebuild(old / source, new / name)
            else:
                self._rebuild_file(old / source, new / name, found.st_ino)
        self._folders[new.stat().st_ino] = {name: (new / name).stat().st_ino for name in sorted([*kept, *older])}

    def _rebuild_file(self, old: Path, new: Path, inode: int) -> None:
        data = old.read_bytes()
        durable = bytes(self._files.pop(inode, b""))
        is_appended = data.startswith(durable) and inode not in self._rewritten
        self._rewritten.discard(inode)
        tail = data[len(durable) :] if is_appended else b""
        draw = self.scheduler.random
        kept_bytes = draw.randrange(len(tail) + 1) if tail and draw.randrange(2) and self.keeps_unflushed else 0
        torn = bytearray(tail[:kept_bytes])
        if torn and draw.randrange(4) == 0:  # the last sectors of it were allocated and never written
            at = len(durable) + len(torn) - draw.randrange(1, len(torn) + 1)
            start = max(at - at % 512 - len(durable), 0)
            torn[start:] = bytes(len(torn) - start)
            self.scheduler.counters["torn writes"] += 1
        self._write(new, durable + bytes(torn))

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o640)
        self._files[path.stat().st_ino] = bytearray(content)

    def empty(self) -> None:
        """Replace the disk with an empty one."""
        self.scheduler.trace("emptied", self.name)
        self.is_damaged = True
        shutil.rmtree(self._retire())
        self.folder.mkdir(mode=0o750)
        self._files.clear()
        self._folders.clear()

    def flip_bit(self, *, closed: bool = False) -> str:
        """Flip one bit of a segment file. Return its name, '' without one.

        The header of the last batch stays: with another size, the batch looks like a torn write. ``closed``: not of the newest
        segment of a log.
        """
        draw = self.scheduler.random
        files = sorted(path for path in self.folder.glob("streams/*/*/*.log") if path.stat().st_size > 64)
        if closed:
            newest = {path.parent: path for path in files}
            files = [path for path in files if path != newest[path.parent]]
        if not files:
            return ""
        self.is_damaged = True
        path = files[draw.randrange(len(files))]
        from liftpy.core.wire.batch import HEADER_SIZE_BYTES, SIGNATURE, SIGNATURE_POSITION  # after the interposition

        size, data = path.stat().st_size, path.read_bytes()
        last = max(data.rfind(SIGNATURE) - SIGNATURE_POSITION, 0)
        position = draw.randrange(size)
        if last <= position < last + HEADER_SIZE_BYTES:
            position = min(position + HEADER_SIZE_BYTES, size - 1)
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0] ^ (1 << draw.randrange(8))
            file.seek(position)
            file.write(bytes([byte]))
        self.scheduler.trace("bit flipped", self.name, path.name, position)
        return path.name


def _disk_of(process: Process | None) -> Disk | None:
    return process.disk if process is not None else None


def interpose(running: Callable[[], Process | None]) -> None:
    """Give the calls of ``os`` that matter to the disk of the process that runs."""

    def fail_if_planned(call: str, path: Any) -> None:
        disk = _disk_of(running())
        if disk is not None:
            disk.fail_if_planned(call, path)

    def opened(path: Any, *args: Any, **options: Any) -> int:
        process = running()
        disk = _disk_of(process)
        if disk is not None:
            disk.fail_if_planned("open", path)
            disk.check_new_file(path, args[0] if args else options.get("flags", 0))
        descriptor = real_open(path, *args, **options)
        if process is not None:
            process.descriptors.add(descriptor)
            if process.disk is not None and args and args[0] & os.O_CREAT:
                process.disk.note_made(descriptor)
        return descriptor

    def closed(descriptor: int) -> None:
        process = running()
        if process is not None:
            process.descriptors.discard(descriptor)
        real_close(descriptor)

    def flush(descriptor: int) -> None:
        disk = _disk_of(running())
        if disk is None:
            real_fsync(descriptor)
        else:
            disk.flush(descriptor)

    def write(descriptor: int, data: Any) -> int:
        disk = _disk_of(running())
        return real_write(descriptor, data) if disk is None else disk.write(descriptor, [data])

    def writev(descriptor: int, pieces: Any) -> int:
        disk = _disk_of(running())
        return real_writev(descriptor, pieces) if disk is None else disk.write(descriptor, pieces)

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        disk = _disk_of(running())
        if disk is not None:
            disk.rewritten(descriptor)
            if disk.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_pwrite(descriptor, data, offset)

    def pread(descriptor: int, size_bytes: int, offset: int) -> bytes:
        disk = _disk_of(running())
        return real_pread(descriptor, size_bytes, offset) if disk is None else disk.read(descriptor, size_bytes, offset)

    def ftruncate(descriptor: int, size_bytes: int) -> None:
        disk = _disk_of(running())
        if disk is not None:
            disk.fail_if_planned("truncate", descriptor)
            disk.rewritten(descriptor)
        real_ftruncate(descriptor, size_bytes)

    def rename(source: Any, target: Any, **options: Any) -> None:
        fail_if_planned("rename", target)
        real_rename(source, target, **options)

    def unlink(path: Any, **options: Any) -> None:
        fail_if_planned("unlink", path)
        real_unlink(path, **options)

    def listdir(*args: Any) -> list[Any]:
        names = sorted(real_listdir(*args))
        process = running()
        if process is not None and process.disk is not None:
            process.scheduler.random.shuffle(names)
        return names

    def disk_usage(folder: Any) -> Any:
        disk = _disk_of(running())
        return real_disk_usage(folder) if disk is None else disk.usage()

    def statvfs(folder: Any) -> Any:
        disk = _disk_of(running())
        return real_statvfs(folder) if disk is None else disk.file_system()

    shutil.disk_usage, os.statvfs = disk_usage, statvfs  # type: ignore[assignment]
    os.open, os.close, os.write, os.writev = opened, closed, write, writev  # type: ignore[assignment]
    os.pread, os.pwrite, os.fsync, os.fdatasync = pread, pwrite, flush, flush  # type: ignore[assignment]
    os.ftruncate, os.listdir = ftruncate, listdir  # type: ignore[assignment]
    os.rename, os.unlink = rename, unlink  # type: ignore[assignment]


def close_descriptors(process: Process) -> None:
    """Close the file descriptors of an ended process, which releases its locks."""
    nothing = real_open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in sorted(process.descriptors):
        os.dup2(nothing, descriptor, inheritable=False)
    real_close(nothing)
    process.descriptors.clear()
