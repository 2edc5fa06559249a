//! What the targets share: a small checkpoint in memory-backed storage, one of whose files is whatever the
//! fuzzer says; and the readers of everything else.

use std::fs;
use std::path::{Path, PathBuf};
use zero3::checkpoint::{Reader, reshard};
use zero3::error::Error;

pub mod readers;

/// The checkpoint that every version of the program reads.
pub const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/checkpoint_v1");

/// A checkpoint on two ranks and what is in it.
pub struct Checkpoint {
    _dir: tempfile::TempDir,
    step_dir: PathBuf,
    file: PathBuf,
    good: Vec<u8>,
    values: Vec<Vec<u32>>,
}

impl Checkpoint {
    /// As today's program writes it, with a digest of each file's structure.
    pub fn of_today() -> Self {
        let dir = scratch();
        let resharded =
            reshard(Path::new(GOLDEN), dir.path(), 2, |_| ()).expect("the golden checkpoint reads");
        let step_dir = resharded.to;
        Checkpoint::at(dir, step_dir)
    }

    /// As the first version wrote it, without one.
    pub fn of_version_1() -> Self {
        let dir = scratch();
        let step_dir = dir.path().join("golden");
        fs::create_dir(&step_dir).expect("a directory");
        for entry in fs::read_dir(GOLDEN).expect("it is checked in").flatten() {
            fs::copy(entry.path(), step_dir.join(entry.file_name())).expect("a copy");
        }
        Checkpoint::at(dir, step_dir)
    }

    fn at(dir: tempfile::TempDir, step_dir: PathBuf) -> Self {
        let reader = Reader::open(&step_dir).expect("a good checkpoint");
        let file = step_dir.join(&reader.manifest().files[0].name);
        let good = fs::read(&file).expect("its first file");
        let mut checkpoint = Checkpoint { _dir: dir, step_dir, file, good, values: Vec::new() };
        checkpoint.values = checkpoint.read().expect("good values");
        checkpoint
    }

    /// Bits of everything, parameter by parameter.
    fn read(&self) -> Result<Vec<Vec<u32>>, Error> {
        let mut reader = Reader::open(&self.step_dir)?;
        let params = reader.manifest().params.clone();
        let mut values = Vec::new();
        for param in &params {
            for kind in reader.manifest().kinds() {
                let mut out = vec![0.0; param.numel];
                reader.read(&param.name, kind, 0..param.numel, &mut out)?;
                values.push(out.iter().map(|x| x.to_bits()).collect());
            }
        }
        Ok(values)
    }

    /// The file holds `bytes`, cut or filled up to its right size: an error that names it, or the right data.
    pub fn with_file(&self, bytes: &[u8]) {
        let mut content = self.good.clone();
        let n = bytes.len().min(content.len());
        content[..n].copy_from_slice(&bytes[..n]);
        fs::write(&self.file, content).expect("memory is left");
        match self.read() {
            Ok(values) => assert!(values == self.values, "wrong data were taken for right"),
            Err(Error::Checkpoint(why)) => assert!(why.contains("rank_0000_of_0002.h5"), "{why}"),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    tempfile::tempdir_in(place).expect("a temporary directory")
}
