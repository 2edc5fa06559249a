//! Writing a whole file so that a crash leaves the old one or the new one, never a part.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes `path` anew: a temporary file beside it, fsync, rename, fsync of the directory. A leftover of an earlier crash is
/// overwritten. One process at a time may do this to a path.
pub(crate) fn replace_file(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let file = File::create(&temporary).map_err(|err| Error::io("create", &temporary, &err))?;
    let mut writer = BufWriter::new(file);
    write(&mut writer).and_then(|()| writer.flush()).map_err(|err| Error::io("write", &temporary, &err))?;
    writer.get_ref().sync_all().map_err(|err| Error::io("fsync", &temporary, &err))?;
    std::fs::rename(&temporary, path).map_err(|err| Error::io("rename to", path, &err))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|err| Error::io("fsync", dir, &err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_a_leftover_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary.json");
        replace_file(&path, |w| w.write_all(b"old")).unwrap();
        let failed = replace_file(&path, |w| w.write_all(b"new").and(Err(std::io::Error::other("disk full"))));
        assert!(failed.unwrap_err().to_string().contains("disk full"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        replace_file(&path, |w| w.write_all(b"newer")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
