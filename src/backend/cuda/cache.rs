//! A directory that keeps compiled kernels from one run to the next.
//!
//! A cache is never in the way: what cannot be read or written is said once, as a warning, and the run
//! compiles. A file is written under another name and renamed, so no run sees half of one; it begins with a
//! digest of the rest, so no run loads a damaged one.
//!
//! A digest is no signature: whoever may write a file decides what runs on the device as this user. So, as
//! ssh does with keys, a file is believed only where it and all directories above it belong to this user or
//! to root and nobody else may write them.
//!
//! Must not know: what an image is, CUDA, ranks.

use crate::files;
use std::fmt;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// What a file begins with, before the digest.
const MAGIC: &[u8; 8] = b"zero3k1\n";

/// Where images are cached, if they are.
pub struct Cache {
    dir: Option<PathBuf>,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dir.as_deref().unwrap_or(Path::new("no cache")).display().fmt(f)
    }
}

impl Cache {
    /// As `run.kernel_cache` says it: a directory, `auto` for the user's, or empty for none.
    pub fn new(setting: &str) -> Self {
        let dir = match setting {
            "" => None,
            "auto" => user_cache(|name| crate::environment::variable_os(name).map(PathBuf::from)),
            dir => Some(dir.into()),
        };
        Cache { dir }
    }

    /// The image of that name; None where there is none, or a damaged one.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.dir.as_ref()?.join(name);
        match read_trusted(&path) {
            Ok(Err(why)) => {
                log::warn!("{why}: {} is not believed, the kernels are compiled", path.display());
                None
            }
            Ok(Ok(file)) => {
                let image = unpack(file);
                if image.is_none() {
                    log::warn!("{} is damaged, the kernels are compiled again", path.display());
                }
                image
            }
            Err(error) => {
                // Writing reports a path that is not a directory.
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    log::warn!("{} cannot be read ({error}), the kernels are compiled again", path.display());
                }
                None
            }
        }
    }

    /// Writes an image; false where that fails, or caching is off.
    pub fn write(&self, name: &str, image: &[u8]) -> bool {
        let Some(dir) = &self.dir else { return false };
        // Whatever the umask says, nobody else may write what is to be believed.
        let written = DirBuilder::new().recursive(true).mode(0o755).create(dir).and_then(|()| {
            let mut file =
                tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(dir)?;
            file.write_all(&head(image))?;
            file.write_all(image)?;
            // Two runs at once write the same bytes: whichever renames last is right, too.
            file.persist(dir.join(name)).map(|_| ()).map_err(|error| error.error)
        });
        if let Err(error) = &written {
            log::warn!(
                "cannot cache compiled kernels in {} ({error}); set run.kernel_cache to another directory",
                dir.display()
            );
        }
        written.is_ok()
    }
}

/// The bytes of a file, or why they are not to be believed.
fn read_trusted(path: &Path) -> std::io::Result<Result<Vec<u8>, String>> {
    // SAFETY: a plain system call without arguments.
    let me = unsafe { libc::geteuid() };
    let mut file = files::open(path)?;
    let refused = |meta: &Metadata, path: &Path| {
        distrust(meta.uid(), meta.mode(), meta.is_dir(), me).map(|why| format!("{} {why}", path.display()))
    };
    if let Some(why) = refused(&file.metadata()?, path) {
        return Ok(Err(why));
    }
    // Links are looked through: what counts is where the file lies.
    for dir in path.canonicalize()?.ancestors().skip(1) {
        if let Some(why) = refused(&std::fs::metadata(dir)?, dir) {
            return Ok(Err(why));
        }
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Ok(bytes))
}

/// Why what belongs to `owner` and has this mode is not to be believed by `me`. In a directory with the
/// sticky bit (/tmp) others may add entries, but not replace those of this user.
fn distrust(owner: u32, mode: u32, is_dir: bool, me: u32) -> Option<String> {
    let is_sticky = is_dir && mode & libc::S_ISVTX != 0;
    match mode & 0o022 {
        _ if owner != me && owner != 0 => Some(format!("belongs to user {owner}")),
        0 => None,
        _ if is_sticky => None,
        _ => Some(format!("has mode {:04o}, so others may write it (chmod go-w)", mode & 0o7777)),
    }
}

/// `zero3` in the user's directory for caches (XDG Base Directory Specification); None where there is none.
fn user_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // Paths that are not absolute are to be ignored.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    caches.map(|caches| caches.join("zero3"))
}

fn head(image: &[u8]) -> Vec<u8> {
    [MAGIC.as_slice(), &xxh3_128(image).to_le_bytes()].concat()
}

/// The image of a whole file.
fn unpack(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let n_head = MAGIC.len() + size_of::<u128>();
    let image = file.get(n_head..)?;
    let whole = file.starts_with(&head(image));
    whole.then(|| {
        file.drain(..n_head);
        file
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_damage_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("some/where");
        let cache = Cache::new(place.to_str().unwrap());
        assert_eq!(cache.read("image"), None);
        assert!(cache.write("image", b"machine code"));
        assert_eq!(cache.read("image").unwrap(), b"machine code");
        let path = place.join("image");
        let file = std::fs::read(&path).unwrap();
        for n_bytes in 0..file.len() {
            std::fs::write(&path, &file[..n_bytes]).unwrap();
            assert_eq!(cache.read("image"), None, "the first {n_bytes} bytes");
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(cache.read("image"), None, "byte {at}");
        }
        assert!(cache.write("image", b"machine code"));
        assert_eq!(cache.read("image").unwrap(), b"machine code");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("above/cache");
        let cache = Cache::new(place.to_str().unwrap());
        assert!(cache.write("image", b"machine code"));
        let (file, above) = (place.join("image"), dir.path().join("above"));
        for (path, mode, is_believed) in [
            (&file, 0o664, false),
            (&file, 0o646, false),
            (&file, 0o600, true),
            (&place, 0o775, false),
            (&place, 0o1777, true),
            (&place, 0o700, true),
            (&above, 0o757, false),
            (&above, 0o755, true),
        ] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(cache.read("image").is_some(), is_believed, "{} with mode {mode:o}", path.display());
        }
        assert_eq!(distrust(7, 0o644, false, 7), None);
        assert_eq!(distrust(0, 0o644, false, 7), None, "root's");
        assert_eq!(distrust(8, 0o644, false, 7).as_deref(), Some("belongs to user 8"));
        assert_eq!(distrust(8, 0o1777, true, 7).as_deref(), Some("belongs to user 8"));
        assert!(
            distrust(7, 0o1666, false, 7).unwrap().contains("mode 1666"),
            "the sticky bit of a file says nothing"
        );
    }

    #[test]
    fn a_place_that_is_no_directory_keeps_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::new(file.path().join("below").to_str().unwrap());
        assert_eq!((cache.read("image"), cache.write("image", b"x")), (None, false));
        let none = Cache::new("");
        assert_eq!((none.read("image"), none.write("image", b"x")), (None, false));
    }

    #[test]
    fn the_users_cache_is_where_the_specification_says() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            let text = user_cache(|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from));
            text.map(|path| path.display().to_string())
        };
        assert_eq!(of(Some("/x"), Some("/h")).as_deref(), Some("/x/zero3"));
        assert_eq!(of(Some("x"), Some("/h")).as_deref(), Some("/h/.cache/zero3"));
        assert_eq!(of(None, Some("/h")).as_deref(), Some("/h/.cache/zero3"));
        assert_eq!(of(None, None), None);
    }
}
