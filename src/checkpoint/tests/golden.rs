//! The checked-in checkpoint of version 1: every later version must read it.

use super::*;

const TAG: u64 = 77;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoint_v1")
}

#[test]
fn the_checked_in_version_1_checkpoint_reads_as_it_was_written() {
    let dir = resolve(&golden()).unwrap();
    let found = inspect(&dir).unwrap();
    assert_eq!((found.format_version, found.world_size, found.step, found.attempts), (1, 2, 12, 14));
    assert_eq!((found.samples, found.tokens, found.seeds.data_seed), (96, 6144, 7));
    assert_eq!(found.aliases[0].param, "wte.weight");
    let verified = verify(&dir, &|_| ()).unwrap();
    assert!(verified.damage.is_empty(), "{verified}");
    for world_size in [1, 2, 3, 7] {
        check_restores(&dir, TAG, world_size);
    }
}

#[test]
#[ignore = "makes tests/golden/checkpoint_v1 anew, which no change to the program may need"]
fn write_the_version_1_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), TAG, 12, 2);
    std::fs::create_dir_all(golden()).unwrap();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), golden().join(entry.file_name())).unwrap();
    }
}
