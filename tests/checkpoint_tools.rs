//! `zero3 ckpt verify`, `diff`, `reshard`, and the master file, on checkpoints that the real binary wrote.

mod common;

use common::{Case, Run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zero3::checkpoint::manifest::{ADAM_STATES, MeshDim, Param};
use zero3::checkpoint::{self, Kind, Manifest, Reader, SliceValues, Stored};
use zero3::plan::Slice;

fn zero3(words: &[&str]) -> Run {
    Run::new(0).args(words)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

fn step_dir(case: &Case, run: &str, step: u64) -> PathBuf {
    checkpoint::step_dir(&case.path(run), step)
}

/// Trains the tiny deck to step 2 into `run`.
fn trained(case: &Case, n_ranks: usize, run: &str) -> PathBuf {
    case.train(n_ranks, run, &["train.steps=2"]).output().expect_success();
    step_dir(case, run, 2)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

/// Offset of the first bytes of a parameter's slice in its rank file.
fn offset_of(path: &Path, dataset: &str) -> usize {
    let file = hdf5::File::open(path).unwrap();
    file.dataset(dataset).unwrap().offset().expect("the values have a place") as usize
}

#[test]
fn verify_names_file_dataset_and_elements_of_each_damage() {
    let case = Case::tiny();
    let dir = trained(&case, 3, "run");
    let run = case.path("run");
    zero3(&["ckpt", "verify", text(&run)]).output().expect_success().expect_text("intact");
    let json = zero3(&["ckpt", "verify", text(&dir), "--json"]).output().expect_success();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["n_files"], 5, "three ranks, the master file, the manifest: {json}");

    // Two values, and a byte of the structure of a third file.
    let (one, two) = (dir.join("rank_0001_of_0003.h5"), dir.join("rank_0002_of_0003.h5"));
    flip(&one, offset_of(&one, "exp_avg/wte.weight") + 40);
    flip(&one, offset_of(&one, "weight/ln_f.bias") + 3);
    let end = std::fs::metadata(&two).unwrap().len() as usize;
    flip(&two, end - 2);
    let said = zero3(&["ckpt", "verify", text(&run)]).output().expect_code(2);
    for part in [
        "rank_0001_of_0003.h5: dataset /exp_avg/wte.weight",
        "dataset /weight/ln_f.bias",
        "elements",
        "rank_0002_of_0003.h5",
    ] {
        assert!(said.text().contains(part), "{part} is not in\n{said}");
    }
    assert!(!said.text().contains("rank_0000_of_0003.h5"), "{said}");

    // Cut short, and missing; both at once.
    std::fs::write(&one, b"short").unwrap();
    std::fs::remove_file(dir.join("model.h5")).unwrap();
    let said = zero3(&["ckpt", "verify", text(&dir)]).output().expect_code(2);
    let said = said.expect_text("rank_0001_of_0003.h5 has 5 bytes").expect_text("model.h5 is missing");
    assert!(said.stdout.contains("is damaged"), "{said}");
    flip(&dir.join("manifest.json"), 100);
    zero3(&["ckpt", "verify", text(&dir)]).output().expect_code(2).expect_text("manifest.json is damaged");
    zero3(&["ckpt", "verify", "/nowhere"]).output().expect_code(2).expect_text("no such directory");
}

#[test]
fn a_restore_does_not_need_the_master_file() {
    let case = Case::tiny();
    let dir = trained(&case, 2, "run");
    std::fs::remove_file(dir.join("model.h5")).unwrap();
    case.train(3, "run", &[]).output().expect_success().expect_text("restored step 2");
}

#[test]
fn diff_says_equal_across_rank_counts_and_how_far_where_not() {
    let case = Case::tiny();
    let (a, b) = (trained(&case, 1, "a"), trained(&case, 3, "b"));
    zero3(&["ckpt", "diff", text(&a), text(&b)]).output().expect_success().expect_text("equal");
    case.train(2, "b", &[]).output().expect_success();
    let said = zero3(&["ckpt", "diff", text(&a), text(&case.path("b"))]).output().expect_code(1);
    said.expect_text("wte.weight weight:").expect_text("elements differ");
    let said = zero3(&["ckpt", "diff", text(&a), text(&case.path("b")), "--json"]).output().expect_code(1);
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(json["differing"][0]["max_abs_diff"].as_f64().unwrap() > 0.0, "{json}");
    zero3(&["ckpt", "diff", text(&a), text(&case.path("none"))]).output().expect_code(2);
}

/// All files of a step directory, the manifest without the paths of its deck and its digest.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if name == "manifest.json" {
                let mut json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                json["deck"] = serde_json::Value::Null;
                json["digest"] = serde_json::Value::Null;
                bytes = serde_json::to_vec_pretty(&json).unwrap();
            }
            (name, bytes)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_resharded_checkpoint_is_byte_for_byte_what_those_ranks_would_have_saved() {
    let case = Case::tiny();
    trained(&case, 3, "three");
    for m in [1, 2, 4] {
        let (saved, to) = (trained(&case, m, &format!("saved_{m}")), case.path(&format!("resharded_{m}")));
        let (from, ranks) = (case.path("three"), m.to_string());
        let line = ["ckpt", "reshard", text(&from), text(&to), "--ranks", &ranks];
        zero3(&line).output().expect_success().expect_text("(3 ranks)");
        let (ours, theirs) = (content(&checkpoint::step_dir(&to, 2)), content(&saved));
        let names = |files: &[(String, Vec<u8>)]| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs));
        for (our, their) in ours.iter().zip(&theirs) {
            let differs = our.1.iter().zip(&their.1).position(|(a, b)| a != b).unwrap_or(0);
            let near = |bytes: &[u8]| {
                String::from_utf8_lossy(&bytes[differs.saturating_sub(80)..bytes.len().min(differs + 80)])
                    .into_owned()
            };
            let (near_ours, near_theirs) = (near(&our.1), near(&their.1));
            assert!(our.1 == their.1, "{} of {m} ranks differs: {near_ours}\n{near_theirs}", our.0);
        }
        zero3(&["ckpt", "verify", text(&to)]).output().expect_success();
        // A second time: nothing is overwritten.
        zero3(&line).output().expect_code(2).expect_text("already contains checkpoints");
    }
    // Into the run itself neither.
    let run = case.path("three");
    zero3(&["ckpt", "reshard", text(&run), text(&run), "--ranks", "2"]).output().expect_code(2);
    // A damaged source is refused and leaves nothing that counts.
    let file = step_dir(&case, "three", 2).join("rank_0001_of_0003.h5");
    flip(&file, offset_of(&file, "exp_avg/wte.weight") + 40);
    let to = case.path("from_damaged");
    let said = zero3(&["ckpt", "reshard", text(&run), text(&to), "--ranks", "2"]).output().expect_code(2);
    said.expect_text("/exp_avg/wte.weight");
    assert_eq!(checkpoint::newest(&to).unwrap(), None);
    assert_eq!(std::fs::read_dir(to.join("checkpoints")).unwrap().count(), 0, "cleared away");
}

/// A checkpoint of 25 million elements (300 MB) on three ranks, in one large and one odd parameter.
fn large_checkpoint(run_dir: &Path) -> PathBuf {
    let params: [(&str, [usize; 2]); 2] = [("wte.weight", [12_207, 2048]), ("odd.weight", [7, 11])];
    let partial = checkpoint::prepare(run_dir, 7).unwrap();
    let files = (0..3)
        .map(|rank| {
            let held: Vec<(usize, usize, Vec<f32>)> = params
                .iter()
                .map(|(_, shape)| {
                    let numel = shape[0] * shape[1];
                    let s = numel.div_ceil(3);
                    let (start, end) = ((rank * s).min(numel), ((rank + 1) * s).min(numel));
                    (start, end, (start..end).map(|i| i as f32 * 0.37).collect())
                })
                .collect();
            let slices: Vec<SliceValues<'_>> = params
                .iter()
                .zip(&held)
                .map(|((param, global_shape), (start, end, values))| SliceValues {
                    slice: Slice { param, global_shape, start: *start, end: *end },
                    values: Stored::of(&Kind::all(&ADAM_STATES), |_| &values[..]),
                })
                .collect();
            checkpoint::write_rank_file(&partial, rank, 3, 7, &slices).unwrap()
        })
        .collect();
    let manifest = Manifest {
        step: 7,
        psi: params.iter().map(|(_, s)| s[0] * s[1]).sum(),
        digest_block: checkpoint::manifest::digest_block(params.iter().map(|(_, s)| s[0] * s[1]).sum(), 3),
        world_size: 3,
        mesh: vec![MeshDim { dim: "shard".into(), extent: 3 }],
        params: params.iter().map(|(name, shape)| Param::whole(name, shape, true)).collect(),
        files,
        ..Manifest::default()
    };
    checkpoint::master::finish(run_dir, manifest).unwrap()
}

/// The highest resident memory of a process while it runs, in bytes.
fn peak_resident_bytes(mut command: Command) -> u64 {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut peak_kib = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0));
        if let Some(code) = child.try_wait().unwrap() {
            assert!(code.success(), "{command:?}: {code}");
            return peak_kib * 1024;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn reshard_takes_a_fixed_amount_of_memory_whatever_the_model_s_size() {
    let case = Case::tiny();
    let dir = large_checkpoint(&case.path("large"));
    let file_bytes = std::fs::metadata(dir.join("rank_0000_of_0003.h5")).unwrap().len();
    assert!(file_bytes > 95 << 20, "{file_bytes}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zero3"));
    command.args(["ckpt", "reshard", text(&dir), text(&case.path("two")), "--ranks", "2"]);
    let peak_bytes = peak_resident_bytes(command);
    println!("resharding 300 MB took {peak_bytes} bytes at most");
    // The program itself with its libraries, and three blocks of 4 MiB.
    assert!(peak_bytes < 64 << 20, "{peak_bytes} bytes");
    let found = checkpoint::diff(&dir, &case.path("two")).unwrap();
    assert!(found.is_equal(), "{found}");
}

#[test]
fn a_resume_with_another_deck_says_what_differs_and_refuses_another_model_or_sequence() {
    let case = Case::tiny();
    trained(&case, 2, "run");
    let again = |words: &[&str]| case.train(3, "run", &[words, &["train.steps=3"]].concat()).output();
    // All refusals at once, each with its values and the way out.
    let said = again(&["model.n_head=4", "data.seed=9"]).expect_code(2);
    let said = said.expect_text("model.n_head: 2 -> 4").expect_text("different model");
    said.expect_text("data.seed: 1 -> 9").expect_text("data.allow_changed=true");
    let said = again(&[
        "optim.lr=3e-3",
        "log.level=info",
        "zero.prefetch_units=0",
        "data.seed=9",
        "data.allow_changed=true",
    ]);
    let said = said.expect_success().expect_text("the new value applies: optim.lr: 0.01 -> 0.003");
    let said = said.expect_text("no effect on the result: zero.prefetch_units: 1 -> 0");
    said.expect_text("allowed by data.allow_changed: data.seed: 1 -> 9");
}

/// Parameters of all shapes in the master file and what the reader of checkpoints has for them.
fn whole(dir: &Path) -> Vec<(String, Vec<f32>)> {
    let mut reader = Reader::open(dir).unwrap();
    let params = reader.manifest().params.clone();
    let mut found = Vec::new();
    for kind in reader.manifest().kinds() {
        for param in &params {
            let mut values = vec![0.0; param.numel];
            reader.read(&param.name, kind, 0..param.numel, &mut values).unwrap();
            found.push((format!("/{kind}/{}", param.name), values));
        }
    }
    found
}

#[test]
fn h5dump_shows_every_parameter_whole_from_any_directory() {
    let case = Case::tiny();
    let dir = trained(&case, 3, "run");
    // Moved as a whole, and opened from elsewhere by a relative path.
    let moved = case.path("elsewhere");
    std::fs::rename(&dir, &moved).unwrap();
    let out = case.path("values.bin");
    for (dataset, values) in whole(&moved) {
        let dump = Command::new("h5dump")
            .args(["-d", &dataset, "-b", "LE", "-o", text(&out), "elsewhere/model.h5"])
            .current_dir(case.path("."))
            .output()
            .unwrap_or_else(|e| panic!("the tests need h5dump (`make setup-test` installs it): {e}"));
        assert!(dump.status.success(), "{dataset}: {}", String::from_utf8_lossy(&dump.stderr));
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(std::fs::read(&out).unwrap() == bytes, "{dataset} differs");
    }
    let header = Command::new("h5dump").args(["-H", text(&moved.join("model.h5"))]).output().unwrap();
    let header = String::from_utf8_lossy(&header.stdout).into_owned();
    assert!(header.contains("( 256, 20 )"), "the shape is the parameter's own\n{header}");
    assert!(header.contains("lm_head.weight"), "the tied head has its name\n{header}");
}

#[test]
#[ignore = "needs python3 with h5py: make test-python runs it"]
fn h5py_shows_every_parameter_whole_from_any_directory() {
    let case = Case::tiny();
    let dir = trained(&case, 3, "run");
    let script = "import h5py, sys\nf = h5py.File(sys.argv[1], \
                  'r')\nsys.stdout.buffer.write(f[sys.argv[2]][...].tobytes())";
    for (dataset, values) in whole(&dir) {
        let out = Command::new("python3")
            .args(["-c", script, "run/checkpoints/step_00000002/model.h5", &dataset])
            .current_dir(case.path("."))
            .output()
            .unwrap();
        assert!(out.status.success(), "{dataset}: {}", String::from_utf8_lossy(&out.stderr));
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(out.stdout == bytes, "{dataset} differs");
    }
}
