//! The doubles of NVIDIA's libraries (tests/cuda/doubles): how they are built, and how a run is given them.

use super::Run;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The names under which the program looks for the libraries.
pub const LIBRARIES: [&str; 4] = ["libcuda.so.1", "libnccl.so.2", "libcublasLt.so.13", "libnvrtc.so.13"];

/// The directory of the doubles, built if they are not there or older than their sources.
pub fn doubles() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("cuda-doubles", &[]))
}

/// The doubles without some functions of their interface, in a directory of their own.
pub fn doubles_without(symbols: &[&str]) -> PathBuf {
    // The function is there under another name, which nobody asks for.
    let flags: Vec<String> = symbols.iter().map(|symbol| format!("-D{symbol}=without_{symbol}")).collect();
    build(&format!("cuda-doubles-without-{}", symbols.join("-")), &[format!("EXTRA={}", flags.join(" "))])
}

fn build(name: &str, variables: &[String]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp has a parent");
    let dir = target.join(name);
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    // Test programs may run side by side.
    let lock = File::create(dir.join("lock")).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    lock.lock().expect("a lock on a file of this machine");
    let mut make = Command::new("make");
    make.arg("-s").arg("-j2").arg("-f").arg(root.join("tests/cuda/doubles/Makefile"));
    make.arg(format!("OUT={}", dir.display())).args(variables);
    let built = make.output().unwrap_or_else(|e| panic!("the tests need make: {e}. `make setup` installs it"));
    assert!(built.status.success(), "{make:?}\n{}", String::from_utf8_lossy(&built.stderr));
    dir
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
        self.env("LD_LIBRARY_PATH", library_path(doubles()))
            .env("CUDA_DOUBLE_DEVICES", n_devices.to_string())
            .env("CUDA_DOUBLE_ORDER", order)
    }
}

/// Orders of streams: both extremes, then seeds.
pub fn orders(n_seeds: usize) -> Vec<String> {
    let seeds = (1..=n_seeds).map(|seed| seed.to_string());
    ["demand", "others"].map(String::from).into_iter().chain(seeds).collect()
}
