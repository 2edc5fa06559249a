//! What is on disk and what people see of it.

use std::fs;

use hdf5::types::VarLenUnicode;

use super::*;

#[test]
fn manifest_round_trips_through_its_bytes() {
    let run = tempfile::tempdir().unwrap();
    let manifest = write_partial(run.path(), 1, 9, 3);
    let bytes = manifest.to_bytes().unwrap();
    assert_eq!(Manifest::from_bytes(&bytes).unwrap(), manifest);
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["aliases"][0]["param"], "wte.weight");
    assert_eq!(json["seeds"]["init_seed"], u64::MAX);
    assert_eq!(json["writer"]["program"], "zero3");
}

#[test]
fn a_manifest_that_would_be_refused_is_not_written() {
    let run = tempfile::tempdir().unwrap();
    let mut manifest = write_partial(run.path(), 1, 9, 2);
    manifest.psi += 1;
    assert!(matches!(manifest.to_bytes(), Err(Error::Internal(_))));
    assert!(commit(run.path(), &manifest).is_err());
    assert_eq!(newest(run.path()).unwrap(), None);
}

#[test]
fn rank_file_has_the_names_and_attributes_people_look_for() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 2, 40, 4);
    let file = h5::open(&dir.join("rank_0003_of_0004.h5")).unwrap();
    let mut groups = file.member_names().unwrap();
    groups.sort();
    assert_eq!(groups, ["exp_avg", "exp_avg_sq", "weight"]);
    let about: VarLenUnicode = file.attr("about").unwrap().read_scalar().unwrap();
    assert_eq!(about.as_str(), "zero3 checkpoint, step 40: slices of rank 3 of 4");
    let attr = |name: &str| file.attr(name).unwrap().read_scalar::<u64>().unwrap();
    assert_eq!(["format_version", "rank", "world_size", "step"].map(attr), [1, 3, 4, 40]);

    let dataset = file.dataset("exp_avg/wte.weight").unwrap();
    let shape = dataset.attr("global_shape").unwrap().read_raw::<u64>().unwrap();
    assert_eq!(shape, [101, 5]);
    assert_eq!(dataset.attr("start").unwrap().read_scalar::<u64>().unwrap(), 381);
    assert_eq!(dataset.attr("numel").unwrap().read_scalar::<u64>().unwrap(), 505);
    let stored = dataset.read_raw::<f32>().unwrap();
    assert_eq!(bits(&stored), bits(&values(2, 4, Kind::Optim(ExpAvg), 381..505)));
    // numel 3 on 4 ranks: the last rank's slice is empty, and there.
    assert_eq!(file.dataset("weight/h.0.ln_1.bias").unwrap().shape(), [0]);
}

#[test]
fn rank_files_open_while_another_process_holds_a_lock() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 2, 40, 1);
    let held = fs::File::open(dir.join(rank_file_name(0, 1))).unwrap();
    held.lock().unwrap();
    check_restores(&dir, 2, 1);
}

#[test]
fn inspection_shows_what_was_saved() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 2, 40, 4);
    let seen = inspect(run.path()).unwrap();
    assert_eq!(seen.path, dir);
    let on_disk: u64 = seen.files.iter().map(|f| fs::metadata(dir.join(&f.name)).unwrap().len()).sum();
    assert_eq!(seen.total_bytes, on_disk);
    let table = seen.to_string();
    for part in ["step         40", "tokens", "rank_0003_of_0004.h5", "[101, 5]", "lm_head.weight"] {
        assert!(table.contains(part), "{part} not in\n{table}");
    }
    let bias = table.lines().find(|l| l.starts_with("h.0.ln_1.bias")).unwrap();
    assert_eq!(bias.split_whitespace().collect::<Vec<_>>(), ["h.0.ln_1.bias", "[3]", "3", "3", "no"]);
    let json = serde_json::to_value(&seen).unwrap();
    assert_eq!(json["psi"], manifest(1, 1, Vec::new()).psi);
    assert_eq!(json["params"][4]["shape"], serde_json::json!([101, 5]));
}

/// A foreign file: whole tensors of both float types in a nested group, one of them chunked.
fn foreign_file() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.h5");
    let file = hdf5::File::create(&path).unwrap();
    let group = file.create_group("gpt2").unwrap().create_group("init").unwrap();
    let flat: Vec<f32> = (0..7 * 11 * 3).map(|i| i as f32 * 0.5).collect();
    let cube = ndarray::Array3::from_shape_vec((7, 11, 3), flat).unwrap();
    group.new_dataset_builder().with_data(&cube).create("cube").unwrap();
    group.new_dataset_builder().with_data(&cube).chunk((2, 3, 3)).create("chunked").unwrap();
    group.new_dataset_builder().with_data(&[0.1f64, 0.2, 1e300]).create("bias").unwrap();
    group.new_dataset::<f32>().create("scale").unwrap().write_scalar(&4.0f32).unwrap();
    group.new_dataset::<i32>().shape(3).create("ints").unwrap();
    let spec = format!("{}:gpt2/init", path.display());
    (dir, spec)
}

#[test]
fn foreign_weights_read_in_any_range() {
    let (_dir, spec) = foreign_file();
    let params: [(&str, &[usize]); 4] =
        [("cube", &[7, 11, 3]), ("chunked", &[7, 11, 3]), ("bias", &[3]), ("scale", &[])];
    let weights = WeightsFile::open(&spec, &params).unwrap();
    for name in ["cube", "chunked"] {
        for start in (0..=231).step_by(7) {
            for end in (start..=231).step_by(5) {
                let mut out = vec![0.0; end - start];
                weights.read(name, start..end, &mut out).unwrap();
                let expected: Vec<f32> = (start..end).map(|i| i as f32 * 0.5).collect();
                assert_eq!(out, expected, "{name} {start}..{end}");
            }
        }
    }
    let mut out = [0.0; 2];
    weights.read("bias", 1..3, &mut out).unwrap();
    assert_eq!(out, [0.2f64 as f32, f32::INFINITY]);
    weights.read("scale", 0..1, &mut out[..1]).unwrap();
    assert_eq!(out[0], 4.0);
    // The group may also be written from the root.
    WeightsFile::open(&spec.replace(":gpt2", ":/gpt2"), &params).unwrap();
}

#[test]
fn foreign_weights_list_everything_amiss_at_once() {
    let (_dir, spec) = foreign_file();
    let params: [(&str, &[usize]); 4] =
        [("cube", &[11, 7, 3]), ("gone", &[1]), ("ints", &[3]), ("bias", &[3])];
    let Err(Error::Input(why)) = WeightsFile::open(&spec, &params) else { panic!("no error") };
    for part in ["3 of 4", "cube: of shape [7, 11, 3]", "[11, 7, 3]", "gone: missing", "ints: of type"] {
        assert!(why.contains(part), "{part} not in: {why}");
    }
    assert!(!why.contains("bias"), "{why}");
    let none: [(&str, &[usize]); 0] = [];
    for (spec, part) in [("/gone.h5", "no such file"), (&spec.replace("init", "x"), "no group")] {
        let Err(Error::Input(why)) = WeightsFile::open(spec, &none) else { panic!("no error") };
        assert!(why.contains(part), "{why}");
    }
}

/// What is wrong with one dataset of 300 f32 that `make` puts into a file, as opening the file for it says
/// it.
fn refusal(make: impl FnOnce(&Path, &hdf5::File)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights.h5");
    let file = hdf5::File::create(&path).unwrap();
    make(dir.path(), &file);
    drop(file);
    match WeightsFile::open(&path.display().to_string(), &[("w", [300])]) {
        Ok(_) => String::new(),
        Err(Error::Input(why)) => why,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn values_that_were_never_written_are_missing_and_not_zeros() {
    let values: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let new = |file: &hdf5::File| file.new_dataset::<f32>().shape(300);
    let why = refusal(|_, file| _ = new(file).create("w").unwrap());
    assert!(why.contains("w: declared but never written"), "{why}");
    let why = refusal(|_, file| _ = new(file).chunk(100).create("w").unwrap());
    assert!(why.contains("w: declared but never written"), "{why}");
    let why = refusal(|_, file| {
        new(file).chunk(100).create("w").unwrap().write_slice(&values[..200], 0..200).unwrap()
    });
    assert!(why.contains("w: only 2 of its 3 chunks were written"), "{why}");
    let why = refusal(|_, file| new(file).chunk(64).create("w").unwrap().write_raw(&values).unwrap());
    assert_eq!(why, "");
    // Written whole, but each read would take four gigabytes for its one chunk.
    let why = refusal(|_, file| {
        let chunked = file.new_dataset::<f32>().shape((300..,)).chunk(1_000_000_000).create("w").unwrap();
        drop(chunked);
    });
    assert!(why.contains("w: its chunks have 4000000000 bytes"), "{why}");
}

#[test]
fn a_view_that_would_show_zeros_for_a_missing_file_is_refused() {
    let why = refusal(|dir, file| {
        let source = hdf5::File::create(dir.join("part.h5")).unwrap();
        source.new_dataset::<f32>().shape(300).create("v").unwrap().write_raw(&vec![1.5f32; 300]).unwrap();
        let shown = file.new_dataset::<f32>().virtual_map("part.h5", "v", 300, 0..300, 300, 0..300);
        shown.shape(300).create("w").unwrap();
    });
    assert!(why.contains("weights.h5") && why.contains("w: a view of other files, which"), "{why}");
    let why = refusal(|_, file| {
        let shown = file.new_dataset::<f32>().virtual_map("gone.h5", "v", 300, 0..300, 300, 0..300);
        shown.shape(300).create("w").unwrap();
    });
    assert!(why.contains("w: a view of other files, and ") && why.contains("/gone.h5 is missing"), "{why}");
}

#[test]
fn the_view_of_a_checkpoint_is_the_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    let manifest = write_partial(run.path(), 2, 40, 3);
    let dir = master::finish(run.path(), manifest).unwrap();
    let view = |group: &str| weights_file::view_of_checkpoint(&format!("{}/model.h5{group}", dir.display()));
    assert_eq!(view(":weight"), Some((dir.clone(), Kind::Weight)));
    assert_eq!(view(":/exp_avg/"), Some((dir.clone(), Kind::Optim(ExpAvg))));
    assert_eq!(view(""), None);
    assert_eq!(view(":other"), None);
    assert_eq!(weights_file::view_of_checkpoint("model.h5:weight"), None);
}

/// What an optimizer of one state stores: a program that knows Adam's two alone has to refuse it, by the
/// feature's name.
#[test]
fn fewer_states_are_stored_by_their_names_and_an_older_program_refuses_them() {
    let run = tempfile::tempdir().unwrap();
    let kinds = [Kind::Weight, Kind::Optim(OptimState::MomentumBuffer)];
    let held = Stored::of(&kinds, |kind| values(5, 1, kind, 0..3));
    let slice = Slice { param: "h.0.ln_1.bias", global_shape: &[3], start: 0, end: 3 };
    let slice = SliceValues { slice, values: held.each_ref().map(|v| &v[..]) };
    let dir = prepare(run.path(), 1).unwrap();
    let files = vec![write_rank_file(&dir, 0, 1, 1, &[slice]).unwrap()];
    let optimizer = Optimizer { name: "sgd".into(), step: 1, states: vec![OptimState::MomentumBuffer] };
    let params = vec![Param::whole("h.0.ln_1.bias", &[3], false)];
    let silent = Manifest { step: 1, psi: 3, params, files, optimizer, ..Manifest::default() };
    let why = silent.to_bytes().unwrap_err().to_string();
    assert!(why.contains("without the required feature"), "{why}");
    let required_features = silent.optimizer.required_features();
    assert_eq!(required_features, [manifest::OPTIMIZER_STATES]);
    let dir = commit(run.path(), &Manifest { required_features, ..silent }).unwrap();

    let mut reader = Reader::open(&dir).unwrap();
    assert_eq!(reader.manifest().kinds(), kinds);
    for kind in kinds {
        let mut out = [0.0; 3];
        reader.read("h.0.ln_1.bias", kind, 0..3, &mut out).unwrap();
        assert_eq!(bits(&out), bits(held.get(kind).unwrap()), "{kind}");
    }
    let why = message(reader.read("h.0.ln_1.bias", Kind::Optim(ExpAvg), 0..3, &mut [0.0; 3]));
    assert!(why.contains("there is no exp_avg"), "{why}");
    assert!(verify(&dir, &|_| ()).unwrap().damage.is_empty());
    assert!(inspect(&dir).unwrap().to_string().contains("sgd, 1 updates, states: momentum_buffer"));

    // A state that one of two alone stores is a difference.
    let of_adam = save(run.path(), 1, 2, 1);
    let found = diff(&dir, &of_adam).unwrap();
    assert!(found.only_in_a.contains(&"momentum_buffer".to_string()), "{found}");
    assert!(found.only_in_b.contains(&"exp_avg_sq".to_string()), "{found}");

    let text = std::fs::read_to_string(dir.join(MANIFEST_FILE)).unwrap();
    assert!(text.contains("\"momentum_buffer\": [") && !text.contains("exp_avg"), "{text}");
}
