//! File handling: a file or a directory is replaced atomically, a directory is synced if the file system
//! supports it, and inputs are regular files of bounded size. `tests/architecture.rs` forbids other ways.
//!
//! \[Note: temporary names\] A temporary name is `.NAME.zero3-XXXXXX`, random and created with O_EXCL: it
//! never follows a link, and never touches an existing file. It is locked while in use. A killed process
//! leaves it behind; the next process that replaces NAME removes it if it is not locked.
//!
//! Must not know: the contents of the files.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::{NamedTempFile, TempDir};

/// Suffix of a temporary name, before the random part.
const MARK: &str = ".zero3-";
/// Random characters of a temporary name.
const N_RANDOM: usize = 6;
/// Longer names are truncated in a temporary name, so that it fits wherever the name itself does.
const MAX_NAME_BYTES: usize = 200;
/// Maximum size of a record (a summary, a heartbeat, a config.json).
pub const MAX_RECORD_BYTES: u64 = 64 << 20;
/// Maximum size of a log (steps, events, a trace) that is read as a whole.
pub const MAX_LOG_BYTES: u64 = 4 << 30;
/// Mode of new files, subject to the umask.
pub const NEW_FILE_MODE: u32 = 0o666;

/// Atomically and durably replaces `path`: after a crash at any moment the old file or the new one exists. An
/// existing file retains its mode; a symbolic link is replaced, not followed.
///
/// # Errors
/// The existing entry is not a regular file; failures of the file system. The old file is then unchanged.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>) -> Result<()> {
    let temporary = begin(path).map_err(|e| Error::io("create", path, &e))?;
    let temporary = filled(temporary, write).map_err(|e| Error::io("write", path, &e))?;
    sync(temporary.as_file(), path)?;
    show(temporary, path).map_err(|e| Error::io("rename to", path, &e))?;
    sync_dir(parent(path))
}

/// The same for a file that need not survive a crash of the node: does not wait for the disk.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = filled(begin(path)?, |out| out.write_all(bytes))?;
    show(temporary, path)
}

/// Writes an output named by the user: a symbolic link is followed, and anything that is not a regular file,
/// such as /dev/stdout or a FIFO, is written directly. A regular file is replaced atomically.
///
/// # Errors
/// It is a directory; failures of the file system.
pub fn write_output(path: &Path, bytes: &[u8]) -> Result<()> {
    match fs::metadata(path) {
        // For a directory, or a link to one, `replace` reports the error.
        Ok(meta) if meta.is_file() || meta.is_dir() => {
            let target = path.canonicalize().map_err(|e| Error::io("look at", path, &e))?;
            replace(&target, |out| out.write_all(bytes))
        }
        Ok(_) => {
            let opened = OpenOptions::new().write(true).open(path);
            opened.and_then(|mut file| file.write_all(bytes)).map_err(|e| Error::io("write", path, &e))
        }
        Err(_) => replace(path, |out| out.write_all(bytes)),
    }
}

/// Makes `link` a symbolic link to `target`, replacing an existing one in one rename; `made` is called just
/// before that.
///
/// # Errors
/// The name belongs to something other than a link; the file system has no links, or fails.
pub fn replace_link(link: &Path, target: &Path, made: impl FnOnce()) -> io::Result<()> {
    if let Some(meta) = fs::symlink_metadata(link).ok().filter(|meta| !meta.is_symlink()) {
        let kind = kind_name(meta.file_type());
        return Err(io::Error::new(ErrorKind::AlreadyExists, format!("it is {kind}, not a symbolic link")));
    }
    let (dir, prefix) = (parent(link), prefix(link));
    remove_leftovers(dir, &prefix, Leftover::Link);
    let mut builder = tempfile::Builder::new();
    let temporary = builder
        .prefix(&prefix)
        .rand_bytes(N_RANDOM)
        .make_in(dir, |temporary| std::os::unix::fs::symlink(target, temporary))?;
    made();
    temporary.persist(link).map_err(|e| e.error)?;
    sync_dir(dir).map_err(io::Error::other)
}

/// Creates a file that must not exist yet, not even as a link.
///
/// # Errors
/// The name exists; failures of the file system.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(NEW_FILE_MODE).open(path)
}

/// Opens an internal file for reading and writing, and creates it with `mode` if it does not exist. Links are
/// not followed.
///
/// # Errors
/// It is not a regular file; failures of the file system.
pub fn open_own(path: &Path, mode: u32) -> io::Result<File> {
    own(OpenOptions::new().read(true).write(true).create(true).mode(mode), path)
}

/// The same for a file that must exist.
///
/// # Errors
/// Those of [`open_own`], and a missing file.
pub fn open_to_change(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().read(true).write(true), path)
}

/// Opens an internal file for appending, and creates it if it does not exist. Links are not followed.
///
/// # Errors
/// Those of [`open_own`].
pub fn open_to_append(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().read(true).append(true).create(true).mode(NEW_FILE_MODE), path)
}

/// Opens a regular file for reading; links are followed. Never blocks: a FIFO or a device is rejected at
/// once.
///
/// # Errors
/// It is not a regular file; failures of the file system.
pub fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path))
}

/// The same for an input named by the user that is read sequentially: it may also be a pipe, with a name such
/// as /dev/stdin or a shell's /dev/fd/63.
///
/// # Errors
/// Those of [`open`].
pub fn open_input(path: &Path) -> io::Result<File> {
    let is_pipe = ["/dev", "/proc/self/fd"].iter().any(|dir| path.starts_with(dir));
    if is_pipe { File::open(path) } else { open(path) }
}

/// Opens a directory, so that its descriptor names it.
///
/// # Errors
/// It is not a directory; failures of the file system.
pub fn open_dir(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(dir)
}

/// Reads a whole regular file of at most `max_bytes`; a longer one is refused before any of it is read.
///
/// # Errors
/// Those of [`open`], and an oversized file.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let n_bytes = file.metadata()?.len();
    let too_long = |n| {
        io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it has {n} bytes, more than the maximum of {max_bytes} for such a file"),
        )
    };
    if n_bytes > max_bytes {
        return Err(too_long(n_bytes));
    }
    let mut bytes = Vec::with_capacity(n_bytes as usize);
    // It may grow in the meantime.
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_long(bytes.len() as u64));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// Those of [`read`], and invalid UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    String::from_utf8(read(path, max_bytes)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 at byte {at}"))
    })
}

/// Renames within a file system.
///
/// # Errors
/// Failures of the file system, with both names.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(&format!("rename {} to", from.display()), to, &e))
}

/// Makes the names in a directory durable. A file system that cannot sync a directory (some network ones
/// return EINVAL) makes renames durable by its own rules.
///
/// # Errors
/// The disk failed.
pub fn sync_dir(dir: &Path) -> Result<()> {
    let file = match File::open(dir) {
        // A directory that is writable but not readable.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(()),
        other => other.map_err(|e| Error::io("open", dir, &e))?,
    };
    match file.sync_all() {
        Err(e) if !cannot_sync(&e) => Err(Error::io("fsync", dir, &e)),
        _ => Ok(()),
    }
}

fn cannot_sync(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported)
        || error.raw_os_error() == Some(libc::EBADF)
}

/// Makes a file's bytes durable.
///
/// # Errors
/// The disk failed.
pub fn sync(file: &File, path: &Path) -> Result<()> {
    file.sync_all().map_err(|e| Error::io("fsync", path, &e))
}

/// A directory that is filled under a temporary name and renamed when complete. Dropped before, it is
/// removed.
#[derive(Debug)]
pub struct NewDir {
    target: PathBuf,
    work: TempDir,
    /// The target exists and is empty: it is filled from a directory within it, since it may be a mount point
    /// or a link.
    is_within: bool,
    _lock: Option<File>,
}

impl NewDir {
    /// Starts filling `target`, which must not exist or be an empty directory (a `lost+found` of a fresh file
    /// system is ignored).
    ///
    /// # Errors
    /// It is not empty, or not a directory ([`Error::Input`]); it cannot be written.
    pub fn begin(target: &Path) -> Result<Self> {
        let is_within = match fs::metadata(target) {
            Ok(_) => {
                refuse_filled(target)?;
                true
            }
            // A dangling link belongs to the user.
            Err(_) if fs::symlink_metadata(target).is_ok() => {
                let target = target.display();
                return Err(Error::Input(format!(
                    "{target} is a dangling symbolic link; name a directory that is empty or does not exist"
                )));
            }
            Err(_) => false,
        };
        let dir = if is_within { target } else { parent(target) };
        fs::create_dir_all(dir).map_err(|e| Error::io("mkdir", dir, &e))?;
        let prefix = prefix(target);
        remove_leftovers(dir, &prefix, Leftover::Dir);
        let work = tempfile::Builder::new().prefix(&prefix).rand_bytes(N_RANDOM).tempdir_in(dir);
        let work = work.map_err(|e| Error::io("mkdir in", dir, &e))?;
        let lock = File::open(work.path()).ok();
        if let Some(lock) = &lock {
            lock.try_lock().ok();
        }
        Ok(NewDir { target: target.to_path_buf(), work, is_within, _lock: lock })
    }

    /// Where its files must be created.
    pub fn path(&self) -> &Path {
        self.work.path()
    }

    /// Publishes it, durably; `last` is the file without which the others are useless.
    ///
    /// # Errors
    /// Failures of the file system; the target has been created in the meantime. The target is then
    /// unchanged.
    pub fn finish(self, last: &str) -> Result<()> {
        let NewDir { target, work, is_within, .. } = self;
        sync_dir(work.path())?;
        if !is_within {
            // Renaming onto an empty directory works, atomically.
            rename(work.path(), &target)?;
            let _ = work.keep();
            return sync_dir(parent(&target));
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(work.path()).map_err(|e| Error::io("list", work.path(), &e))? {
            names.push(entry.map_err(|e| Error::io("list", work.path(), &e))?.file_name());
        }
        names.sort_by_key(|name| (name.as_os_str() == last, name.clone()));
        let mut moved = Vec::new();
        let outcome = names.iter().try_for_each(|name| {
            let to = target.join(name);
            if fs::symlink_metadata(&to).is_ok() {
                return Err(Error::Input(format!("{} was created in the meantime", to.display())));
            }
            rename(&work.path().join(name), &to)?;
            moved.push(to);
            Ok(())
        });
        if outcome.is_err() {
            moved.iter().for_each(|path| _ = fs::remove_file(path));
        }
        outcome.and_then(|()| sync_dir(&target))
    }
}

/// Fails if a directory is not empty, or not a directory.
fn refuse_filled(target: &Path) -> Result<()> {
    let no = |why: &str| {
        Error::Input(format!("{} {why}; name a directory that is empty or does not exist", target.display()))
    };
    let meta = fs::metadata(target).map_err(|e| Error::io("look at", target, &e))?;
    if !meta.is_dir() {
        return Err(no("is not a directory"));
    }
    let prefix = prefix(target);
    for entry in fs::read_dir(target).map_err(|e| Error::io("list", target, &e))? {
        let name = entry.map_err(|e| Error::io("list", target, &e))?.file_name();
        if name != "lost+found" && !is_temporary(&name, &prefix) {
            return Err(no("is not empty"));
        }
    }
    Ok(())
}

/// A temporary file for `path`, with the mode of the existing file.
fn begin(path: &Path) -> io::Result<NamedTempFile> {
    let before = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => Some(meta.permissions()),
        Ok(meta) if !meta.is_symlink() => return Err(not_regular(&meta)),
        _ => None,
    };
    let (dir, prefix) = (parent(path), prefix(path));
    if is_first_time(path) {
        remove_leftovers(dir, &prefix, Leftover::File);
    }
    let mut builder = tempfile::Builder::new();
    let builder =
        builder.prefix(&prefix).rand_bytes(N_RANDOM).permissions(Permissions::from_mode(NEW_FILE_MODE));
    let temporary = builder.tempfile_in(dir)?;
    // If the file system has no locks, leftovers remain.
    temporary.as_file().try_lock().ok();
    if let Some(mode) = before {
        // Before it contains anything that others may not read.
        temporary.as_file().set_permissions(mode)?;
    }
    Ok(temporary)
}

fn filled(
    mut temporary: NamedTempFile,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    let mut out = BufWriter::new(temporary.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    Ok(temporary)
}

/// Renames a finished file to its final name. Not with `persist`, whose system call bypasses the C library:
/// tests make the C library's renames fail.
fn show(mut temporary: NamedTempFile, path: &Path) -> io::Result<()> {
    fs::rename(temporary.path(), path)?;
    temporary.disable_cleanup(true);
    Ok(())
}

/// Whether this process has not replaced this path before.
fn is_first_time(path: &Path) -> bool {
    static REPLACED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut replaced = REPLACED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    replaced.insert(path.to_path_buf())
}

/// Prefix of temporary names of `path`.
fn prefix(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or(OsStr::new("output")).as_bytes();
    let mut prefix = OsString::from(".");
    prefix.push(OsStr::from_bytes(&name[..name.len().min(MAX_NAME_BYTES)]));
    prefix.push(MARK);
    prefix
}

fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let random = name.as_bytes().strip_prefix(prefix.as_bytes());
    random.is_some_and(|random| random.len() == N_RANDOM && random.iter().all(u8::is_ascii_alphanumeric))
}

/// The kind of entry a killed process may have left under a temporary name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leftover {
    File,
    Dir,
    Link,
}

/// Removes what killed processes left: entries of this kind and of such a name that are not locked. What
/// cannot be removed remains, and does no harm.
fn remove_leftovers(dir: &Path, prefix: &OsStr, wanted: Leftover) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name(), prefix)) {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        let is_free = || {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            opened.is_ok_and(|file| file.try_lock().is_ok())
        };
        match wanted {
            Leftover::Link if kind.is_symlink() => fs::remove_file(&path).ok(),
            Leftover::File if kind.is_file() && is_free() => fs::remove_file(&path).ok(),
            Leftover::Dir if kind.is_dir() && is_free() => fs::remove_dir_all(&path).ok(),
            _ => None,
        };
    }
}

/// The directory of a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // A link is not followed: its target belongs to someone else.
    match options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link, not a regular file"))
        }
        opened => regular(opened),
    }
}

/// The file, if it is a regular one.
fn regular(opened: io::Result<File>) -> io::Result<File> {
    let file = match opened {
        // The error of a socket, and of a FIFO without a reader when opened for writing.
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "it is a socket or a FIFO, not a regular file",
            ));
        }
        opened => opened?,
    };
    let meta = file.metadata()?;
    if meta.is_file() { Ok(file) } else { Err(not_regular(&meta)) }
}

fn not_regular(meta: &Metadata) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is {}, not a regular file", kind_name(meta.file_type())),
    )
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn fifo(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary.json");
        replace(&path, |w| w.write_all(b"old")).unwrap();
        let failed = replace(&path, |w| w.write_all(b"new").and(Err(io::Error::other("disk full"))));
        assert!(failed.unwrap_err().to_string().contains("disk full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace(&path, |w| w.write_all(b"newer")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["summary.json"]);
    }

    #[test]
    fn leftovers_go_and_what_is_somebody_elses_or_in_use_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let of_others = [
            ".a.json.tmp",
            ".a.json.zero3-abc",
            ".a.json.zero3-abc-ef",
            ".b.json.zero3-abcdef",
            "a.json.partial",
        ];
        of_others.iter().for_each(|name| fs::write(dir.path().join(name), "precious").unwrap());
        symlink("a.json.partial", dir.path().join(".a.json.zero3-LINKED")).unwrap();
        fs::write(dir.path().join(".a.json.zero3-KILLED"), "torn").unwrap();
        let used = create_new(&dir.path().join(".a.json.zero3-INUSE0")).unwrap();
        used.try_lock().unwrap();
        replace(&path, |w| w.write_all(b"new")).unwrap();
        let mut want: Vec<&str> =
            of_others.into_iter().chain([".a.json.zero3-INUSE0", ".a.json.zero3-LINKED", "a.json"]).collect();
        want.sort();
        assert_eq!(names(dir.path()), want);
    }

    #[test]
    fn links_are_replaced_or_refused_and_never_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &link).unwrap();
        for open in [open_own(&link, 0o600), open_to_append(&link)] {
            assert!(open.unwrap_err().to_string().contains("symbolic link"));
        }
        assert_eq!(create_new(&link).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let gone = dir.path().join("gone");
        assert_eq!(open_to_change(&gone).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!gone.exists());
        replace(&link, |w| w.write_all(b"new")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        // What a person names is meant as it is named.
        symlink(&target, dir.path().join("output")).unwrap();
        write_output(&dir.path().join("output"), b"figures").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"figures");
        write_output(Path::new("/dev/null"), b"figures").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fifo(&at("fifo"));
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        symlink(at("fifo"), at("link")).unwrap();
        for (name, what) in
            [("fifo", "a FIFO"), ("socket", "a socket"), ("dir", "a directory"), ("link", "a FIFO")]
        {
            let why = read(&at(name), 10).unwrap_err().to_string();
            assert!(why.contains(what) && why.contains("not a regular file"), "{name}: {why}");
            let why = open_own(&at(name), 0o600).map(drop).map_err(|e| e.to_string());
            assert!(why.is_err(), "{name}");
            if name != "link" {
                let why = replace(&at(name), |_| Ok(())).unwrap_err().to_string();
                assert!(why.contains("not a regular file"), "{name}: {why}");
            }
        }
        assert!(read(Path::new("/dev/zero"), 10).unwrap_err().to_string().contains("a device"));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("1099511627776 bytes"), "{error}");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("not UTF-8 at byte 0"));
    }

    #[test]
    fn a_new_directory_is_shown_whole_and_nobody_elses_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // What a former version took for its own.
        fs::create_dir(at("m.partial")).unwrap();
        fs::write(at("m.partial/notes"), "precious").unwrap();
        let fill = |new: &NewDir| {
            for name in ["config.json", "model"] {
                fs::write(new.path().join(name), name).unwrap();
            }
        };
        let new = NewDir::begin(&at("m")).unwrap();
        fill(&new);
        assert!(!at("m").exists());
        new.finish("config.json").unwrap();
        assert_eq!(names(&at("m")), ["config.json", "model"]);

        // Empty ones are filled in place: a link to one, and one that holds what a fresh file system has.
        fs::create_dir_all(at("empty/lost+found")).unwrap();
        symlink(at("empty"), at("link")).unwrap();
        let new = NewDir::begin(&at("link")).unwrap();
        fill(&new);
        new.finish("config.json").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(names(&at("empty")), ["config.json", "lost+found", "model"]);

        // One that was given up is gone.
        drop(NewDir::begin(&at("given/up")).unwrap());
        assert_eq!(names(&at("given")), [] as [&str; 0]);

        for (name, why) in [
            ("m", "is not empty"),
            ("m/model", "is not a directory"),
            ("nothing", "a dangling symbolic link"),
        ] {
            if name == "nothing" {
                symlink("nowhere", at(name)).unwrap();
            }
            let error = NewDir::begin(&at(name)).unwrap_err();
            assert!(error.to_string().contains(why) && error.exit().code() == 2, "{error}");
        }
        assert_eq!(names(dir.path()), ["empty", "given", "link", "m", "m.partial", "nothing"]);
        assert_eq!(fs::read(at("m.partial/notes")).unwrap(), b"precious");
    }

    #[test]
    fn a_directory_that_cannot_be_synced_is_no_error_and_a_failing_disk_is() {
        for code in [libc::EINVAL, libc::ENOTSUP, libc::ENOSYS, libc::EBADF] {
            assert!(cannot_sync(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for code in [libc::EIO, libc::ENOSPC, libc::EDQUOT] {
            assert!(!cannot_sync(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
