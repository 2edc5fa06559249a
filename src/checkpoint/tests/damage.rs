//! Whatever happens to the bytes: an error or the right data, in bounded time and memory.

use std::fs;

use serde_json::{Value, json};

use super::*;

/// A committed checkpoint on two ranks and the path of rank 1's file.
pub(super) fn checkpoint() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 11, 1, 2);
    let file = dir.join(rank_file_name(1, 2));
    (run, dir, file)
}

/// Reads all: as one rank, as each of three, and without verification, where values may be wrong but nothing
/// else may happen.
pub(super) fn read_all_ways(dir: &Path) -> Result<()> {
    let mut reader = Reader::open(dir)?;
    reader.verify(false);
    for (name, shape) in PARAMS {
        for kind in KINDS {
            let mut out = vec![0.0; numel(shape)];
            let _ = reader.read(name, kind, 0..numel(shape), &mut out);
        }
    }
    drop(reader);
    for rank in 0..3 {
        read_rank(dir, 11, 3, rank)?;
    }
    read_rank(dir, 11, 1, 0).map(|_| ())
}

/// Rewrites the manifest with a valid digest, so that only its content can be refused.
pub(super) fn seal(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join(MANIFEST_FILE);
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("digest");
    edit(&mut json);
    let mut text = serde_json::to_string_pretty(&json).unwrap();
    text.truncate(text.len() - 2);
    text.push_str(",\n  ");
    let digest = manifest::hex(xxhash_rust::xxh3::xxh3_64(text.as_bytes()));
    text.push_str(&format!("\"digest\": \"{digest}\"\n}}\n"));
    fs::write(path, text).unwrap();
}

#[test]
fn flipped_bits_of_a_rank_file_are_errors_or_harmless() {
    let (_run, dir, path) = checkpoint();
    let good = fs::read(&path).unwrap();
    let (mut n_errors, mut n_harmless) = (0, 0);
    let n = 600;
    for i in 0..n {
        // Every region of the file, every bit of a byte; the first bytes are the superblock.
        let at = if i < 64 { i } else { (i - 64) * good.len() / (n - 64) };
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (i % 8);
        fs::write(&path, &bytes).unwrap();
        match read_all_ways(&dir) {
            Ok(()) => n_harmless += 1,
            Err(Error::Checkpoint(why)) => {
                assert!(why.contains("rank_0001_of_0002.h5"), "{why}");
                n_errors += 1;
            }
            Err(other) => panic!("bit {} of byte {at}: {other:?}", i % 8),
        }
        // The digest of the file sees every one of them.
        let reader = Reader::open(&dir).unwrap();
        reader.verify_file(0).unwrap();
        assert!(message(reader.verify_file(1)).contains("do not match its digest"));
    }
    assert!(n_errors > 100, "{n_errors} errors, {n_harmless} harmless");
}

#[test]
fn a_flipped_bit_of_a_value_names_file_dataset_and_range() {
    let (_run, dir, path) = checkpoint();
    let mut bytes = fs::read(&path).unwrap();
    let wanted = value(11, 4, Kind::Optim(ExpAvg), 300).to_le_bytes();
    let at = bytes.windows(4).position(|w| w == wanted).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let why = message(read_rank(&dir, 11, 1, 0));
    for part in ["rank_0001_of_0002.h5", "/exp_avg/wte.weight", "253..505", "digest"] {
        assert!(why.contains(part), "{part} not in: {why}");
    }
}

#[test]
fn truncated_rank_files_are_errors_at_any_length() {
    let (_run, dir, path) = checkpoint();
    let good = fs::read(&path).unwrap();
    for i in 0..200 {
        let len = i * good.len() / 200;
        fs::write(&path, &good[..len]).unwrap();
        assert!(message(read_all_ways(&dir)).contains("rank_0001_of_0002.h5"));
        // The same with a manifest that believes the size.
        seal(&dir, |m| m["files"][1]["bytes"] = json!(len));
        assert!(message(read_all_ways(&dir)).contains("rank_0001_of_0002.h5"));
        seal(&dir, |m| m["files"][1]["bytes"] = json!(good.len()));
    }
    fs::write(&path, &good).unwrap();
    read_all_ways(&dir).unwrap();
}

#[test]
fn flipped_and_truncated_manifests_are_errors_everywhere() {
    let (_run, dir, _) = checkpoint();
    let path = dir.join(MANIFEST_FILE);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(Manifest::from_bytes(&bytes).is_err(), "byte {at}");
        assert!(Manifest::from_bytes(&good[..at]).is_err(), "length {at}");
    }
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(message(Reader::open(&dir).map(|_| ())).contains("manifest.json is damaged"));
    fs::write(&path, &good).unwrap();
    read_all_ways(&dir).unwrap();
}

#[test]
fn missing_files_are_named() {
    let (_run, dir, path) = checkpoint();
    fs::remove_file(&path).unwrap();
    assert!(message(read_all_ways(&dir)).contains("rank_0001_of_0002.h5 is missing"));
    fs::create_dir(&path).unwrap();
    assert!(
        message(read_all_ways(&dir)).contains("rank_0001_of_0002.h5 cannot be opened: it is a directory")
    );
    fs::remove_file(dir.join(MANIFEST_FILE)).unwrap();
    assert!(message(read_all_ways(&dir)).contains("manifest.json is missing"));
}

#[test]
fn hostile_manifests_are_refused_with_a_reason() {
    type Case = (&'static str, fn(&mut Value));
    let cases: [Case; 27] = [
        ("format_version 2", |m| m["format_version"] = json!(2)),
        ("\"tensor_boxes\"", |m| m["required_features"] = json!(["tensor_boxes"])),
        ("hash", |m| m["hash"] = json!("crc32")),
        ("digest_block", |m| m["digest_block"] = json!(0)),
        ("digest_block", |m| m["digest_block"] = json!(u64::MAX)),
        ("world_size", |m| m["world_size"] = json!(0)),
        ("psi", |m| m["psi"] = json!(1)),
        ("not a manifest", |m| m["step"] = json!(-1)),
        ("not a manifest", |m| m["samples"] = json!(1.5)),
        ("not a manifest", |m| m["files"] = json!({})),
        ("overflows", |m| m["params"][0]["global_shape"] = json!([1u64 << 40, 1u64 << 40])),
        ("elements in shape", |m| m["params"][3]["numel"] = json!(u64::MAX)),
        ("only a box", |m| m["params"][1]["local_box"]["starts"] = json!([1])),
        ("only a box", |m| m["params"][1]["local_box"]["lengths"] = json!([])),
        ("twice", |m| m["params"][0]["name"] = json!("wte.weight")),
        ("parameter name", |m| m["params"][0]["name"] = json!("../a")),
        ("not stored", |m| m["aliases"][0]["param"] = json!("gone")),
        ("already in use", |m| m["aliases"][0]["name"] = json!("wte.weight")),
        ("plain file name", |m| m["files"][0]["name"] = json!("../rank_0000_of_0002.h5")),
        ("two files of rank", |m| m["files"][0]["rank"] = json!(1)),
        ("no slice, or two slices, of", |m| m["files"][1]["slices"][4]["start"] = json!(252)),
        ("ends before it starts", |m| m["files"][1]["slices"][4]["start"] = json!(u64::MAX)),
        ("digests for", |m| m["files"][1]["slices"][4]["end"] = json!(u64::MAX)),
        ("hex digits", |m| m["files"][1]["digest"] = json!("x")),
        ("impossible value ranges", |m| m["files"][1]["structure"]["values"][0][1] = json!(u64::MAX)),
        ("impossible value ranges", |m| m["files"][1]["structure"]["values"] = json!([[9, 20], [19, 30]])),
        ("slices of", |m| {
            m["files"][1]["slices"].as_array_mut().unwrap().remove(4);
        }),
    ];
    for (expected, edit) in cases {
        let (_run, dir, _) = checkpoint();
        seal(&dir, edit);
        let why = message(read_all_ways(&dir));
        assert!(why.contains(expected), "{expected:?} not in: {why}");
        assert!(why.contains("manifest.json"), "{why}");
    }
}

/// Megatron-LM #6191: a slice of padding alone is taken for corruption, or a missing one for padding.
#[test]
fn a_missing_slice_names_the_parameter_and_its_elements() {
    let (_run, dir, _) = checkpoint();
    seal(&dir, |m| {
        m["files"][0]["slices"].as_array_mut().unwrap().remove(4);
    });
    let why = message(read_all_ways(&dir));
    assert!(why.contains("no slice, or two slices, of wte.weight for elements 0..253"), "{why}");
}

#[test]
fn deep_and_foreign_json_is_refused() {
    let deep = "[".repeat(1 << 20);
    assert!(Manifest::from_bytes(deep.as_bytes()).is_err());
    let nested = format!("{{\"format_version\": 1, \"x\": {deep}");
    assert!(Manifest::from_bytes(nested.as_bytes()).is_err());
    for text in ["", "{}", "null", "[1]", "\u{0}", "{\"format_version\": 1}"] {
        assert!(Manifest::from_bytes(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn members_added_later_are_ignored() {
    let (_run, dir, _) = checkpoint();
    seal(&dir, |m| {
        m["loss_scale"] = json!({"scale": 65536.0});
        m["files"][0]["node"] = json!("n01");
    });
    read_all_ways(&dir).unwrap();
}

/// A file of the right size whose dataset is not what the manifest says.
#[test]
fn other_types_shapes_and_layouts_are_errors() {
    type Case = (&'static str, fn(&hdf5::Group));
    let cases: [Case; 6] = [
        ("has type float64", |g| {
            g.new_dataset::<f64>().shape(252).create("wte.weight").unwrap();
        }),
        ("has shape", |g| {
            g.new_dataset::<f32>().shape(251).create("wte.weight").unwrap();
        }),
        ("has shape", |g| {
            g.new_dataset::<f32>().shape((1usize << 40, 1usize << 20)).create("wte.weight").unwrap();
        }),
        ("has layout", |g| {
            g.new_dataset::<f32>().shape(252).chunk(10).create("wte.weight").unwrap();
        }),
        ("stores 0 bytes", |g| {
            g.new_dataset::<f32>().shape(252).create("wte.weight").unwrap();
        }),
        ("cannot be opened", |_| {}),
    ];
    for (expected, make) in cases {
        let (_run, dir, path) = checkpoint();
        {
            let file = hdf5::File::append(&path).unwrap();
            let group = file.group("weight").unwrap();
            group.unlink("wte.weight").unwrap();
            make(&group);
        }
        let bytes = fs::metadata(&path).unwrap().len();
        seal(&dir, |m| m["files"][1]["bytes"] = json!(bytes));
        let why = message(read_all_ways(&dir));
        assert!(why.contains("does not match its digest"), "the library does not get to see it: {why}");
        // Files of programs that recorded no structure are looked at all the same.
        seal(&dir, |m| drop(m["files"][1].as_object_mut().unwrap().remove("structure")));
        let why = message(read_all_ways(&dir));
        assert!(why.contains(expected), "{expected:?} not in: {why}");
        assert!(why.contains("/weight/wte.weight"), "{why}");
    }
}

#[test]
fn a_manifest_that_no_program_of_this_format_writes_is_refused_by_every_reader() {
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit); 8] = [
        ("reduction order \"nonsense\"", |m| m["reduction_order"] = json!("nonsense")),
        ("has samples = 18446744073709551615", |m| m["samples"] = json!(u64::MAX)),
        ("has attempts = 18446744073709551615", |m| m["attempts"] = json!(u64::MAX)),
        ("has tokens = 9223372036854775808", |m| m["tokens"] = json!(1u64 << 63)),
        ("a parameter name \"a/b\"", |m| m["aliases"][0]["name"] = json!("a/b")),
        ("has file rank_0001_of_0002.h5 of rank 7, of 2 ranks", |m| m["files"][1]["rank"] = json!(7)),
        ("that is longer than the file", |m| {
            m["files"][1]["bytes"] = json!(1000);
            m["files"][1].as_object_mut().unwrap().remove("structure");
        }),
        ("of 33 dimensions", |m| {
            let ones = vec![1; 33];
            m["params"][0]["global_shape"] = json!(ones);
            m["params"][0]["local_box"] = json!({ "starts": vec![0; 33], "lengths": ones });
        }),
    ];
    for (words, edit) in edits {
        let (_run, dir, _) = checkpoint();
        seal(&dir, edit);
        for why in [
            message(Reader::open(&dir).map(drop)),
            message(inspect(&dir)),
            message(verify(&dir, &|_| ())),
            message(reshard(&dir, &dir.join("new"), 3, |_| ())),
        ] {
            assert!(why.contains("manifest.json") && why.contains(words), "{words} is not in: {why}");
        }
    }
}

#[test]
fn verify_refuses_what_a_restore_would() {
    let (_run, dir, path) = checkpoint();
    // A file that is as its digest says, and holds another dataset than the manifest says.
    let file = hdf5::File::open_rw(&path).unwrap();
    file.unlink("weight/wte.weight").unwrap();
    file.new_dataset::<f64>().shape(252).create("weight/wte.weight").unwrap();
    file.close().unwrap();
    let (bytes, digest) = write::digest_file(&mut fs::File::open(&path).unwrap()).unwrap();
    seal(&dir, |m| {
        m["files"][1]["bytes"] = json!(bytes);
        m["files"][1]["digest"] = json!(digest);
        m["files"][1].as_object_mut().unwrap().remove("structure");
    });
    assert!(read_rank(&dir, 11, 1, 0).is_err());
    let found = verify(&dir, &|_| ()).unwrap();
    assert_eq!(found.damage.len(), 1, "{found}");
    assert!(found.damage[0].contains("rank_0001_of_0002.h5: dataset /weight/wte.weight has type"), "{found}");
}

#[test]
fn what_is_no_regular_file_is_said_at_once() {
    for name in [MANIFEST_FILE, "rank_0001_of_0002.h5", MASTER_FILE] {
        let run = tempfile::tempdir().unwrap();
        let dir = master::finish(run.path(), write_partial(run.path(), 11, 1, 2)).unwrap();
        fs::remove_file(dir.join(name)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(dir.join(name)).status().unwrap().success());
        let verified = verify(&dir, &|_| ()).map(|found| found.to_string());
        let said = verified.unwrap_or_else(|why| why.to_string());
        assert!(said.contains(name) && said.contains("a FIFO, not a regular file"), "{said}");
        match name {
            MASTER_FILE => check_restores(&dir, 11, 3),
            _ => assert!(message(Reader::open(&dir).map(drop)).contains("a FIFO"), "{name}"),
        }
    }
}

#[test]
fn a_manifest_of_two_hundred_gigabytes_is_refused_by_its_size() {
    let (_run, dir, _) = checkpoint();
    fs::File::options().write(true).open(dir.join(MANIFEST_FILE)).unwrap().set_len(200 << 30).unwrap();
    let why = message(Reader::open(&dir).map(drop));
    assert!(why.contains("manifest.json") && why.contains("214748364800 bytes"), "{why}");
}
