//! The doubles of NVIDIA's libraries (tests/cuda/doubles): how they are built, and how a run is given them.

use super::Run;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// The names under which the program looks for the libraries.
pub const LIBRARIES: [&str; 4] = ["libcuda.so.1", "libnccl.so.2", "libcublasLt.so.13", "libnvrtc.so.13"];

/// The directory of the doubles, built if they are not there or older than their sources.
pub fn doubles() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp has a parent");
        let dir = target.join("cuda-doubles");
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        // Test programs may run side by side.
        let lock = File::create(dir.join("lock")).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        lock.lock().expect("a lock on a file of this machine");
        let mut make = Command::new("make");
        make.arg("-s").arg("-j2").arg("-f").arg(root.join("tests/cuda/doubles/Makefile"));
        make.arg(format!("OUT={}", dir.display()));
        let built =
            make.output().unwrap_or_else(|e| panic!("the tests need make: {e}. `make setup` installs it"));
        assert!(built.status.success(), "{make:?}\n{}", String::from_utf8_lossy(&built.stderr));
        dir
    })
}

/// A directory with the doubles but for one library.
pub fn doubles_beside(library: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    LIBRARIES.into_iter().filter(|name| *name != library).for_each(|name| link_names(dir.path(), name));
    dir
}

/// A directory with the doubles, one of which is no library: whatever the machine has of that name is not
/// found either.
pub fn doubles_without(library: &str) -> TempDir {
    let dir = doubles_beside(library);
    let base = library.split(".so").next().expect("a name");
    for suffix in ["", ".1", ".2", ".9", ".10", ".11", ".12", ".13"] {
        std::fs::write(dir.path().join(format!("{base}.so{suffix}")), "no library")
            .expect("a temporary file");
    }
    dir
}

/// A directory with the doubles, one of which lacks a function.
pub fn doubles_without_symbol(library: &str, symbol: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in LIBRARIES {
        link_names(dir.path(), name);
    }
    // A name of the same length in the table of names: nobody finds the function by the old one.
    let mut bytes = std::fs::read(doubles().join(library)).expect("a double");
    let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|&i| bytes[i..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "{library} has no {symbol}");
    places.into_iter().for_each(|i| bytes[i + 1] = b'X');
    let path = dir.path().join(library);
    std::fs::remove_file(&path).expect("a link made above");
    std::fs::write(path, bytes).expect("a temporary file");
    dir
}

/// Links to a double under the names by which programs look for it.
fn link_names(dir: &Path, library: &str) {
    let base = format!("{}.so", library.split(".so").next().expect("a name"));
    symlink(doubles().join(library), dir.join(library)).expect("a link in a temporary directory");
    symlink(library, dir.join(base)).expect("a link in a temporary directory");
}

/// Where a script of this project puts what it fetches; fetched where it is not there.
pub fn fetched(script: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let run = |word: &str| Command::new(&script).arg(word).output().expect("a script of this project");
    let fetched = run("fetch");
    assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
    String::from_utf8(run("where").stdout).expect("a path").trim_end().into()
}

/// LD_LIBRARY_PATH with `dir` before what is there.
pub fn library_path(dir: &Path) -> std::ffi::OsString {
    let mut path = dir.as_os_str().to_os_string();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

impl Run {
    /// On the doubles: `n_devices` of them, in this order of streams (`demand`, `others`, or a seed).
    pub fn on_doubles(self, n_devices: usize, order: &str) -> Self {
        self.on_libraries(doubles(), n_devices).env("CUDA_DOUBLE_ORDER", order)
    }

    /// The same with doubles of another directory. Their images look like real ones: none goes to the user's
    /// cache.
    pub fn on_libraries(self, dir: &Path, n_devices: usize) -> Self {
        let run = self.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        run.env("LD_LIBRARY_PATH", library_path(dir)).env("CUDA_DOUBLE_DEVICES", n_devices.to_string())
    }
}

/// Orders of streams: both extremes, then seeds.
pub fn orders(n_seeds: usize) -> Vec<String> {
    let seeds = (1..=n_seeds).map(|seed| seed.to_string());
    ["demand", "others"].map(String::from).into_iter().chain(seeds).collect()
}
