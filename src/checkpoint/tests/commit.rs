use std::fs;

use super::find::{check_complete, read_manifest};
use super::*;

/// Directory of a run whose step 100 is committed on 2 ranks, with values of tag 100.
fn run_with_step_100() -> tempfile::TempDir {
    let run = tempfile::tempdir().unwrap();
    save(run.path(), 100, 100, 2);
    run
}

fn newest_step(run_dir: &Path) -> u64 {
    newest(run_dir).unwrap().unwrap().0
}

/// After a save died: step 100 is what a resume finds, and the next save and clean-up leave exactly what they
/// should.
fn check_survives(run_dir: &Path, what: &str) {
    assert_eq!(newest_step(run_dir), 100, "{what}");
    assert_eq!(complete_checkpoints(run_dir).unwrap().len(), 1, "{what}");
    check_restores(&resolve(run_dir).unwrap(), 100, 3);
    save(run_dir, 200, 200, 3);
    assert_eq!(newest_step(run_dir), 200, "{what}");
    check_restores(&resolve(run_dir).unwrap(), 200, 2);
    assert_eq!(retain(run_dir, 2, 0).unwrap().0, [0u64; 0], "{what}");
    assert_eq!(names(run_dir), ["step_00000100", "step_00000200"], "{what}");
}

#[test]
fn death_before_the_rename_leaves_the_previous_checkpoint() {
    type Stage = (&'static str, fn(&Path));
    let stages: [Stage; 6] = [
        ("directory made", |run| {
            prepare(run, 200).unwrap();
        }),
        ("one rank's file half written", |run| {
            let dir = prepare(run, 200).unwrap();
            fs::write(dir.join(rank_file_name(0, 2)), b"\x89HDF").unwrap();
        }),
        ("one rank's file missing", |run| {
            let dir = prepare(run, 200).unwrap();
            write_rank(&dir, 1, 200, 2, 0);
        }),
        ("no manifest", |run| {
            write_partial(run, 1, 200, 2);
        }),
        ("half a manifest", |run| {
            let bytes = write_partial(run, 1, 200, 2).to_bytes().unwrap();
            let path = partial_dir(run, 200).join(MANIFEST_FILE);
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("all but the rename", |run| {
            let bytes = write_partial(run, 1, 200, 2).to_bytes().unwrap();
            fs::write(partial_dir(run, 200).join(MANIFEST_FILE), bytes).unwrap();
        }),
    ];
    for (what, die) in stages {
        let run = run_with_step_100();
        die(run.path());
        check_survives(run.path(), what);
    }
}

#[test]
fn death_during_a_re_save_keeps_the_old_one_until_the_new_one_counts() {
    let replaced = |run: &Path| checkpoints_dir(run).join(format!("{}.replaced", step_dir_name(100)));

    // Before the old one stepped aside.
    let run = run_with_step_100();
    write_partial(run.path(), 1, 100, 3);
    check_survives(run.path(), "re-save: files written");

    // Between the two renames: the old one counts under its other name, and gets its name back with the next
    // save.
    let run = run_with_step_100();
    let bytes = write_partial(run.path(), 1, 100, 3).to_bytes().unwrap();
    fs::write(partial_dir(run.path(), 100).join(MANIFEST_FILE), bytes).unwrap();
    fs::rename(step_dir(run.path(), 100), replaced(run.path())).unwrap();
    assert_eq!(resolve(run.path()).unwrap(), replaced(run.path()));
    check_survives(run.path(), "re-save: old one aside");

    // The same, and the clean-up comes first.
    let run = run_with_step_100();
    fs::rename(step_dir(run.path(), 100), replaced(run.path())).unwrap();
    assert_eq!(retain(run.path(), 1, 0).unwrap().0, [0u64; 0]);
    check_survives(run.path(), "re-save: old one aside, then clean-up");

    // After the commit: the new one counts, the old one goes with the next clean-up.
    let run = run_with_step_100();
    fs::rename(step_dir(run.path(), 100), replaced(run.path())).unwrap();
    let manifest = {
        let dir = partial_dir(run.path(), 100);
        fs::create_dir(&dir).unwrap();
        let files = (0..3).map(|rank| write_rank(&dir, 100, 100, 3, rank)).collect();
        manifest(100, 3, files)
    };
    fs::write(partial_dir(run.path(), 100).join(MANIFEST_FILE), manifest.to_bytes().unwrap()).unwrap();
    fs::rename(partial_dir(run.path(), 100), step_dir(run.path(), 100)).unwrap();
    assert_eq!(resolve(run.path()).unwrap(), step_dir(run.path(), 100));
    check_survives(run.path(), "re-save: old one not yet gone");
}

#[test]
fn death_during_a_deletion_leaves_nothing_that_counts() {
    let run = run_with_step_100();
    let old = save(run.path(), 50, 50, 2);
    let doomed = checkpoints_dir(run.path()).join("step_00000050.doomed");
    fs::rename(&old, &doomed).unwrap();
    fs::remove_file(doomed.join(MANIFEST_FILE)).unwrap();
    assert!(message(resolve(&doomed)).contains("being deleted"));
    check_survives(run.path(), "deletion");
}

#[test]
fn a_failed_save_gives_its_room_back_at_the_latest_to_the_next_one() {
    let run = run_with_step_100();
    write_partial(run.path(), 1, 200, 2);
    clean_up(run.path()).unwrap();
    assert_eq!(names(run.path()), ["step_00000100"]);
    write_partial(run.path(), 1, 200, 2);
    write_partial(run.path(), 1, 300, 2);
    assert_eq!(names(run.path()), ["step_00000100", "step_00000300.partial"]);
    clean_up(&run.path().join("nothing yet")).unwrap();
}

#[test]
fn re_save_of_a_step_replaces_it() {
    let run = run_with_step_100();
    let dir = save(run.path(), 7, 100, 5);
    check_restores(&dir, 7, 2);
    assert_eq!(read_manifest(&dir).unwrap().world_size, 5);
    assert_eq!(names(run.path()), ["step_00000100"]);
    assert!(!dir.join(rank_file_name(0, 2)).exists());
}

#[test]
fn commit_refuses_what_is_not_whole_and_keeps_the_old_one() {
    let run = run_with_step_100();
    let manifest = write_partial(run.path(), 1, 100, 2);
    let path = partial_dir(run.path(), 100).join(rank_file_name(1, 2));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[1..]).unwrap();
    let why = commit(run.path(), &manifest).unwrap_err().to_string();
    assert!(why.contains("rank_0001_of_0002.h5"), "{why}");
    fs::remove_file(&path).unwrap();
    let why = commit(run.path(), &manifest).unwrap_err().to_string();
    assert!(why.contains("rank_0001_of_0002.h5 is missing"), "{why}");
    check_restores(&step_dir(run.path(), 100), 100, 1);
}

#[test]
fn a_rank_file_is_never_written_over() {
    let run = tempfile::tempdir().unwrap();
    let dir = prepare(run.path(), 1).unwrap();
    write_rank(&dir, 1, 1, 1, 0);
    let why = write_rank_file(&dir, 0, 1, 1, &[]).unwrap_err();
    assert!(matches!(why, Error::Io(_)), "{why:?}");
    assert!(why.to_string().contains("rank_0000_of_0001.h5"), "{why}");
}

#[test]
fn retention_keeps_the_newest_and_counts_only_complete_ones() {
    let run = tempfile::tempdir().unwrap();
    for step in [1, 2, 3, 4, 5] {
        save(run.path(), step, step, 1);
    }
    assert_eq!(retain(run.path(), 0, 0).unwrap().0, [0u64; 0]);
    assert_eq!(retain(run.path(), 9, 0).unwrap().0, [0u64; 0]);
    // The newest is damaged: the newest complete one is step 4, and nobody deletes evidence.
    fs::remove_file(step_dir(run.path(), 5).join(MANIFEST_FILE)).unwrap();
    assert_eq!(retain(run.path(), 2, 0).unwrap().0, [1, 2]);
    assert_eq!(names(run.path()), ["step_00000003", "step_00000004", "step_00000005"]);
    assert_eq!(retain(run.path(), 1, 0).unwrap().0, [3]);
    check_restores(&step_dir(run.path(), 4), 4, 2);
    assert_eq!(retain(run.path(), 1, 0).unwrap().0, [0u64; 0]);
}

#[test]
fn clean_up_leaves_what_is_not_ours() {
    let run = run_with_step_100();
    let parent = checkpoints_dir(run.path());
    for name in ["step_100", "step_00000100.bak", "notes.partial", "step_x.partial"] {
        fs::create_dir(parent.join(name)).unwrap();
    }
    retain(run.path(), 1, 0).unwrap();
    assert_eq!(names(run.path()).len(), 5);
    assert_eq!(newest_step(run.path()), 100);
}

#[test]
fn path_may_be_run_checkpoints_or_step_directory() {
    let run = run_with_step_100();
    save(run.path(), 1, 123_456_789, 1);
    let newest = step_dir(run.path(), 123_456_789);
    assert!(newest.ends_with("step_123456789"));
    assert_eq!(resolve(run.path()).unwrap(), newest);
    assert_eq!(resolve(&checkpoints_dir(run.path())).unwrap(), newest);
    assert_eq!(resolve(&newest).unwrap(), newest);
    let older = step_dir(run.path(), 100);
    assert_eq!(resolve(&older).unwrap(), older);
    // A copy elsewhere, under a name of its own.
    let copy = run.path().join("kept");
    fs::rename(&older, &copy).unwrap();
    assert_eq!(resolve(&copy).unwrap(), copy);
}

#[test]
fn path_without_a_checkpoint_is_an_error_that_says_what_would_do() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(newest(run.path()).unwrap(), None);
    assert_eq!(complete_checkpoints(run.path()).unwrap(), []);
    let why = message(resolve(run.path()));
    assert!(why.contains("no complete checkpoint"), "{why}");
    assert!(why.contains("run directory"), "{why}");
    let why = message(resolve(&run.path().join("gone")));
    assert!(why.contains("gone") && why.contains("no such directory"), "{why}");
    fs::write(run.path().join("file"), b"").unwrap();
    assert!(message(resolve(&run.path().join("file"))).contains("not a directory"));
    let partial = prepare(run.path(), 3).unwrap();
    assert!(message(resolve(&partial)).contains("an unfinished save"));
    assert!(message(resolve(run.path())).contains("no complete checkpoint"));
}

#[test]
fn damaged_newest_is_an_error_that_names_the_older_one() {
    let run = run_with_step_100();
    let newest_dir = save(run.path(), 1, 200, 2);
    fs::remove_file(newest_dir.join(rank_file_name(1, 2))).unwrap();
    for why in [message(newest(run.path())), message(resolve(run.path()))] {
        assert!(why.contains("rank_0001_of_0002.h5 is missing"), "{why}");
        let older = format!("--resume {}", step_dir(run.path(), 100).display());
        assert!(why.contains(&older), "{why}");
    }
    assert!(message(resolve(&newest_dir)).contains("rank_0001_of_0002.h5 is missing"));
    fs::remove_dir_all(step_dir(run.path(), 100)).unwrap();
    assert!(message(newest(run.path())).contains("no older complete one"));
}

#[test]
fn step_directory_under_another_step_s_name_is_refused() {
    let run = run_with_step_100();
    let other = step_dir(run.path(), 300);
    fs::rename(step_dir(run.path(), 100), &other).unwrap();
    assert!(message(check_complete(&other)).contains("contains step 100"));
}

#[test]
fn too_little_space_names_both_sizes() {
    let run = tempfile::tempdir().unwrap();
    check_free_space(run.path(), 1).unwrap();
    let why = check_free_space(run.path(), u64::MAX).unwrap_err();
    assert!(matches!(why, Error::Io(_)));
    let why = why.to_string();
    assert!(why.contains("requires 18446744073709551615 bytes"), "{why}");
    assert!(why.contains(&run.path().display().to_string()), "{why}");
    assert!(check_free_space(&run.path().join("gone"), 1).is_err());
}

#[test]
fn retention_keeps_every_kth_for_ever() {
    let run = tempfile::tempdir().unwrap();
    for step in 1..=7 {
        save(run.path(), step, step, 1);
        retain(run.path(), 2, 3).unwrap();
    }
    assert_eq!(names(run.path()), [3, 6, 7].map(step_dir_name));
    // The newest keep_last are among them or beside them; with 0 all are kept.
    save(run.path(), 8, 8, 1);
    assert_eq!(retain(run.path(), 1, 3).unwrap().0, [7]);
    assert_eq!(retain(run.path(), 0, 3).unwrap().0, [0u64; 0]);
    assert_eq!(names(run.path()), [3, 6, 8].map(step_dir_name));
}

#[test]
fn latest_points_at_the_newest_and_nobody_needs_it() {
    let run = tempfile::tempdir().unwrap();
    let link = checkpoints_dir(run.path()).join(LATEST);
    for step in [5, 6] {
        save(run.path(), step, step, 1);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(&step_dir_name(step)), "relative");
        assert_eq!(
            resolve(&link).unwrap().canonicalize().unwrap(),
            step_dir(run.path(), step).canonicalize().unwrap()
        );
    }
    // A save that is not committed does not move it, a leftover of a dead one is no obstacle.
    write_partial(run.path(), 1, 7, 1);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&step_dir_name(6)));
    std::os::unix::fs::symlink("nowhere", checkpoints_dir(run.path()).join(".latest.zero3-KILLED")).unwrap();
    save(run.path(), 8, 8, 1);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&step_dir_name(8)));
    set_aside(run.path(), Some(5)).unwrap();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&step_dir_name(5)));
    // Stale or gone, it changes nothing.
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("step_00000099", &link).unwrap();
    assert_eq!(newest(run.path()).unwrap().unwrap().0, 5);
    assert_eq!(retain(run.path(), 1, 0).unwrap().0, [0u64; 0]);
    set_aside(run.path(), None).unwrap();
    assert!(fs::symlink_metadata(&link).is_err());
}

#[test]
fn locks_are_held_as_the_policy_says() {
    use crate::config::Locking;
    let run = run_with_step_100();
    let dir = step_dir(run.path(), 100);
    let held = fs::File::open(dir.join(rank_file_name(0, 2))).unwrap();
    held.lock().unwrap();
    let read = |locking| {
        let mut reader = Reader::open_with(&dir, locking).unwrap();
        reader.read("wte.weight", Kind::Weight, 0..505, &mut vec![0.0; 505])
    };
    read(Locking::Off).unwrap();
    for locking in [Locking::BestEffort, Locking::On] {
        let why = message(read(locking));
        assert!(why.contains("rank_0000_of_0002.h5") && why.contains("checkpoint.locking=off"), "{why}");
    }
    // Readers do not exclude each other.
    held.unlock().unwrap();
    held.lock_shared().unwrap();
    read(Locking::On).unwrap();
}

#[test]
fn links_and_files_under_names_of_ours_are_never_removed() {
    let run = run_with_step_100();
    let (parent, elsewhere) = (checkpoints_dir(run.path()), run.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join(MANIFEST_FILE), "precious").unwrap();
    for name in ["step_00000200.partial", "step_00000090.doomed", "step_00000100.replaced"] {
        std::os::unix::fs::symlink(&elsewhere, parent.join(name)).unwrap();
    }
    fs::write(parent.join("step_00000080.partial"), "precious").unwrap();
    assert_eq!(clean_up(run.path()).unwrap().len(), 4, "each is left, and said");
    let why = prepare(run.path(), 200).unwrap_err().to_string();
    assert!(why.contains("step_00000200.partial") && why.contains("move it away"), "{why}");
    // A checkpoint that was moved to another file system counts, and its old place is a link to it.
    let moved = run.path().join("moved");
    save(run.path(), 50, 50, 1);
    fs::rename(step_dir(run.path(), 50), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, step_dir(run.path(), 50)).unwrap();
    let (deleted, left) = retain(run.path(), 1, 0).unwrap();
    assert_eq!((deleted, left.len()), (vec![], 5));
    check_restores(&moved, 50, 2);
    assert_eq!(fs::read(elsewhere.join(MANIFEST_FILE)).unwrap(), b"precious");
    assert_eq!(names(run.path()).len(), 6);
    // Nor a file that somebody has called `latest`.
    fs::remove_file(parent.join(LATEST)).unwrap();
    fs::write(parent.join(LATEST), "precious").unwrap();
    save(run.path(), 300, 300, 1);
    set_aside(run.path(), None).unwrap();
    assert_eq!(fs::read(parent.join(LATEST)).unwrap(), b"precious");
}

#[test]
fn a_checkpoint_that_is_deleted_while_it_is_read_is_chosen_again() {
    let run = run_with_step_100();
    let mut steps = Vec::new();
    let read = find::retrying(run.path(), resolve, |dir| {
        let manifest = check_complete(dir)?;
        steps.push(manifest.step);
        if manifest.step < 103 {
            // What a run does meanwhile.
            save(run.path(), 1, manifest.step + 1, 1);
            retain(run.path(), 1, 0).unwrap();
        }
        read_manifest(dir)
    });
    assert_eq!((read.unwrap().step, steps), (103, vec![100, 101, 102, 103]));
    // One that was named itself is no other.
    let named = step_dir(run.path(), 103);
    let why = message(find::retrying(&named, resolve, |dir| {
        save(run.path(), 1, 104, 1);
        retain(run.path(), 1, 0).unwrap();
        read_manifest(dir)
    }));
    assert!(
        why.contains("step_00000103 was deleted while it was read") && why.contains("keep_last"),
        "{why}"
    );
    // A reader that is open says so too.
    let mut reader = Reader::open(&step_dir(run.path(), 104)).unwrap();
    save(run.path(), 1, 105, 1);
    retain(run.path(), 1, 0).unwrap();
    let why = message(reader.read("wte.weight", Kind::Weight, 0..505, &mut vec![0.0; 505]));
    assert!(why.contains("step_00000104 was deleted while it was read"), "{why}");
}
