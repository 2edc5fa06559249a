//! Files that are mapped into memory, and what becomes of those that change while they are.
//!
//! \[Note: SIGBUS\] If a file is truncated after it was mapped, its last pages are no longer readable: the
//! kernel sends SIGBUS to the thread that tries. The handler finds the file by the address and ends the job
//! with a sentence that names it; any other SIGBUS goes to the handler that was there before. A read of a map
//! is code of this program that holds no lock, so what follows may do what any thread may do; the sentence is
//! composed beforehand all the same.
//!
//! Must not know: what is in the files, MPI. How the job is ended is told.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use memmap2::Mmap;

use crate::error::Exit;
use crate::files;
use crate::foreign::on_a_line;

/// A regular file in memory.
#[derive(Debug)]
pub struct MappedFile {
    /// None for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    region: Option<&'static Region>,
    stamp: Stamp,
}

/// What tells a file from another one, and from itself before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// What happened to a file since it was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Its bytes or its length are others; what is read from now on may be new.
    Written,
    /// The path leads to another file, or nowhere; the map shows the old one.
    Replaced,
}

impl Stamp {
    fn of(meta: &std::fs::Metadata) -> Self {
        Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

impl MappedFile {
    /// # Errors
    /// No regular file; failures of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = files::open(path)?;
        let meta = file.metadata()?;
        let stamp = Stamp::of(&meta);
        if meta.len() == 0 {
            return Ok(MappedFile { map: None, region: None, stamp });
        }
        handle_bus_errors();
        // SAFETY: the map is read-only and lives as long as this value. The bytes are only ever read as u8,
        // for which every value is valid, so another process that writes to the file changes numbers; one
        // that truncates it makes reads beyond its end raise SIGBUS, which ends the job (Note: SIGBUS).
        let map = unsafe { Mmap::map(&file) }?;
        let region = Some(Region::register(&map, path));
        Ok(MappedFile { map: Some(map), region, stamp })
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Whether the file at `path`, from which this was opened, is another one by now, or was written to.
    /// Nothing where the file system does not say.
    pub fn change(&self, path: &Path) -> Option<Change> {
        match std::fs::metadata(path).map(|meta| Stamp::of(&meta)) {
            Ok(now) if now == self.stamp => None,
            Ok(now) if (now.device, now.inode) == (self.stamp.device, self.stamp.inode) => {
                Some(Change::Written)
            }
            Ok(_) => Some(Change::Replaced),
            Err(e) => (e.kind() == io::ErrorKind::NotFound).then_some(Change::Replaced),
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(region) = self.region {
            region.is_mapped.store(false, Ordering::Release);
        }
    }
}

/// Where a file lies in memory, in a list that only grows: the handler may not wait for a lock.
#[derive(Debug)]
struct Region {
    start: usize,
    end: usize,
    is_mapped: AtomicBool,
    /// What to say when it was cut short.
    sentence: String,
    next: OnceLock<Box<Region>>,
}

static FIRST: OnceLock<Box<Region>> = OnceLock::new();
/// The end of the list, or nearly: where to look for room.
static LAST: Mutex<Option<&'static Region>> = Mutex::new(None);

impl Region {
    fn register(map: &Mmap, path: &Path) -> &'static Region {
        let who = ENDING.get().map_or("", |ending| ending.who.as_str());
        let path = path.display().to_string();
        let sentence = format!(
            "zero3: {who}{} was cut short while it was being read: it had {} bytes when it was opened; data \
             files must not change during a run, so restore it and start again\n",
            on_a_line(&path),
            map.len()
        );
        let start = map.as_ptr() as usize;
        let region = Region {
            start,
            // The last page is mapped whole.
            end: start + map.len(),
            is_mapped: AtomicBool::new(true),
            sentence,
            next: OnceLock::new(),
        };
        let mut last = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let place = last.map_or(&FIRST, |region| &region.next);
        let region: &'static Region = place.get_or_init(|| Box::new(region));
        *last = Some(region);
        region
    }

    /// The file whose map holds this address.
    fn at(address: usize) -> Option<&'static Region> {
        let mut place = &FIRST;
        while let Some(region) = place.get() {
            if (region.start..region.end).contains(&address) && region.is_mapped.load(Ordering::Acquire) {
                return Some(region);
            }
            place = &region.next;
        }
        None
    }
}

struct Ending {
    who: String,
    end_job: fn(Exit),
}

static ENDING: OnceLock<Ending> = OnceLock::new();

/// How the job is ended where a mapped file was cut short, and who says so (`"rank 1 on node7: "`). Without
/// it the process ends alone.
pub fn end_job_by(who: String, end_job: fn(Exit)) {
    ENDING.set(Ending { who, end_job }).ok();
}

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn handle_bus_errors() {
    static INSTALLED: Once = Once::new();
    // SAFETY: a sigaction is plain bits, which the system call fills in; the handler has the signature that
    // SA_SIGINFO asks for and is installed after what it needs is there. It runs on the stack of the thread
    // that reads: MPI's abort needs more room than an alternative stack has.
    INSTALLED.call_once(|| unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
        BEFORE.set(before).ok();
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    });
}

extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, which has an address for codes of memory errors.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let region = if code == libc::BUS_ADRERR { Region::at(address) } else { None };
    match region {
        Some(region) => end(&region.sentence),
        None => leave_to_the_handler_before(code),
    }
}

/// Says the sentence and ends the job. Of threads that meet it together, one does.
fn end(sentence: &str) -> ! {
    static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);
    if HAS_SPOKEN.swap(true, Ordering::Relaxed) {
        loop {
            // SAFETY: waits for a signal; the other thread ends the process.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: the buffer is valid for its length. One call, so that lines of ranks do not mix.
    unsafe { libc::write(libc::STDERR_FILENO, sentence.as_ptr().cast(), sentence.len()) };
    if let Some(ending) = ENDING.get() {
        (ending.end_job)(Exit::CommFailure);
    }
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(Exit::CommFailure.code()) }
}

/// Puts back what was there: the read is tried again when this returns, and a signal that a process sent
/// comes again.
fn leave_to_the_handler_before(code: libc::c_int) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: an action that the system itself gave; raising a signal in its handler delivers it afterwards.
    unsafe {
        libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
        if code <= 0 {
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_the_file_that_is_mapped_there_as_long_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b\n"].map(|name| dir.path().join(name));
        for path in &paths {
            std::fs::write(path, vec![7; 5000]).unwrap();
        }
        let [a, b] = paths.each_ref().map(|path| MappedFile::open(path).unwrap());
        let address = |file: &MappedFile, at: usize| file.bytes().as_ptr() as usize + at;
        let said = |address| Region::at(address).map(|region| region.sentence.as_str());
        for at in [0, 4999] {
            assert!(said(address(&a, at)).unwrap().contains("/a was cut short"), "{at}");
            assert!(said(address(&b, at)).unwrap().contains("/b\\u000a was cut short"), "{at}");
        }
        let gone = address(&a, 10);
        drop(a);
        assert_eq!(said(gone), None);
        assert!(said(address(&b, 10)).unwrap().contains("it had 5000 bytes"));
        std::fs::write(dir.path().join("empty"), "").unwrap();
        assert_eq!(MappedFile::open(&dir.path().join("empty")).unwrap().bytes(), b"");
    }

    #[test]
    fn a_file_that_is_written_to_replaced_or_removed_has_changed_and_one_that_is_read_has_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "text").unwrap();
        let open = || MappedFile::open(&path).unwrap();
        let file = open();
        std::fs::read(&path).unwrap();
        assert_eq!(file.change(&path), None);
        // A clock of coarse ticks may not have moved since: the time of change is set.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(file.change(&path), Some(Change::Written));
        let file = open();
        std::fs::write(dir.path().join("b"), "text").unwrap();
        std::fs::rename(dir.path().join("b"), &path).unwrap();
        assert_eq!(file.change(&path), Some(Change::Replaced));
        let file = open();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.change(&path), Some(Change::Replaced));
    }
}
