//! Weights as safetensors files with Hugging Face's names: out, in, and everything that can be wrong with
//! them. `make test-hf` asks the `transformers` package itself.

mod common;

use common::{Case, Run, Steps};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zero3::checkpoint::{Kind, Reader};
use zero3::optimizers::OptimState;

/// Name to element type, shape, bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn ckpt(words: &[&dyn AsRef<Path>]) -> Run {
    Run::new(0).arg("ckpt").args(words.iter().map(|word| word.as_ref()))
}

fn trained() -> Case {
    let case = Case::tiny();
    case.train(2, "run", &["train.steps=2"]).output().expect_success();
    case
}

fn tensors_of(file: &Path) -> Tensors {
    let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let parsed = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let owned = |t: &TensorView<'_>| (t.dtype(), t.shape().to_vec(), t.data().to_vec());
    parsed.iter().map(|(name, tensor)| (name.to_string(), owned(&tensor))).collect()
}

fn write_tensors(file: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    std::fs::write(file, serialize(views, None).expect("tensors")).expect("a temporary file");
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The bits of every parameter's values of one kind, by name.
fn values(run_dir: &Path, step: u64, kind: Kind) -> BTreeMap<String, Vec<u32>> {
    let mut reader = Reader::open(&zero3::checkpoint::step_dir(run_dir, step)).expect("a checkpoint");
    let params = reader.manifest().params.clone();
    let mut read = |name: &str, numel: usize| {
        let mut out = vec![f32::NAN; numel];
        reader.read(name, kind, 0..numel, &mut out).expect("values");
        out.iter().map(|x| x.to_bits()).collect()
    };
    params.iter().map(|p| (p.name.clone(), read(&p.name, p.numel))).collect()
}

#[test]
fn what_was_exported_comes_in_again_with_the_same_bits_on_any_number_of_ranks() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")])
        .output()
        .expect_success()
        .expect_text("28 tensors");
    let weights = values(&case.path("run"), 2, Kind::Weight);
    // A directory, or the file in it.
    for (source, run, n_ranks) in [("hf", "a", "3"), ("hf/model.safetensors", "b", "1"), ("hf", "c", "7")] {
        let words: [&dyn AsRef<Path>; 5] =
            [&"import", &case.path(source), &case.path(run), &"--ranks", &n_ranks];
        ckpt(&words).output().expect_success().expect_text("--resume");
        assert!(values(&case.path(run), 0, Kind::Weight) == weights, "{run}");
        for kind in [Kind::Optim(OptimState::ExpAvg), Kind::Optim(OptimState::ExpAvgSq)] {
            assert!(
                values(&case.path(run), 0, kind).values().flatten().all(|bits| *bits == 0),
                "{kind} of {run}"
            );
        }
        Run::new(0).args(["ckpt", "verify"]).arg(case.path(run)).output().expect_success();
    }
    ckpt(&[&"import", &case.path("hf"), &case.path("a")])
        .output()
        .expect_code(2)
        .expect_text("contains checkpoints");
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_code(2).expect_text("not empty");
}

/// borg #1287: what cannot be read is taken for nothing.
#[test]
fn an_import_beside_damaged_checkpoints_is_refused() {
    let case = trained();
    // Where the program once made its temporary directory.
    std::fs::create_dir(case.path("hf.partial")).unwrap();
    std::fs::write(case.path("hf.partial/notes"), "precious").unwrap();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    assert_eq!(std::fs::read(case.path("hf.partial/notes")).unwrap(), b"precious");
    for step in [0, 2] {
        let dir = zero3::checkpoint::step_dir(&case.path("damaged"), step);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("manifest.json"), "torn").unwrap();
        let said = ckpt(&[&"import", &case.path("hf"), &case.path("damaged")]).output().expect_code(2);
        said.expect_text("already contains checkpoints").expect_text(&format!("step_{step:08}"));
        assert_eq!(std::fs::read(dir.join("manifest.json")).unwrap(), b"torn");
        std::fs::remove_dir_all(case.path("damaged")).unwrap();
    }
}

#[test]
fn training_goes_on_from_an_import_by_resume_and_by_init_from_alike() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    ckpt(&[&"import", &case.path("hf"), &case.path("in"), &"--ranks", &"3"]).output().expect_success();
    let from = case.path("in");
    let from = from.to_str().expect("a plain name");
    case.train(2, "resumed", &["--resume", from]).output().expect_success();
    case.train(1, "begun", &[&format!("model.init_from={from}")]).output().expect_success();
    let (resumed, begun) = (Steps::read(&case.path("resumed")), Steps::read(&case.path("begun")));
    common::assert_same_curve(&resumed, &begun);
    assert_eq!(resumed.rows.len(), 4);
    let other = case.train(1, "other", &[&format!("model.init_from={from}"), "model.d_model=24"]);
    other
        .output()
        .expect_code(2)
        .expect_text("wte.weight is [256, 20] in the checkpoint and [256, 24] in the deck");
}

/// DeepSpeed #8376: tied weights twice.
#[test]
fn case_6_the_tied_head_is_written_once_linear_layers_turned_round() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    let tensors = tensors_of(&case.path("hf/model.safetensors"));
    assert!(!tensors.keys().any(|name| name.contains("lm_head")), "{:?}", tensors.keys());
    let weights = values(&case.path("run"), 2, Kind::Weight);
    assert_eq!(tensors.len(), weights.len());
    for (name, ours) in &weights {
        let (dtype, shape, bytes) = &tensors[&format!("transformer.{name}")];
        assert_eq!(*dtype, Dtype::F32);
        let theirs = floats(bytes);
        let is_linear = shape.len() == 2 && name.starts_with("h.");
        for (i, bits) in ours.iter().enumerate() {
            let (rows, columns) = if is_linear { (shape[1], shape[0]) } else { (1, ours.len()) };
            let at = i % columns * rows + i / columns;
            assert_eq!(theirs[at].to_bits(), *bits, "{name}[{i}]");
        }
    }
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(case.path("hf/config.json")).unwrap()).unwrap();
    for (key, value) in
        [("n_layer", 2), ("n_head", 2), ("n_embd", 20), ("n_positions", 16), ("vocab_size", 256)]
    {
        assert_eq!(config[key], value, "{key}");
    }
}

#[test]
fn bf16_is_each_weight_rounded_and_comes_in_as_that() {
    let case = trained();
    ckpt(&[&"export", &"--dtype", &"bf16", &case.path("run"), &case.path("hf")]).output().expect_success();
    let tensors = tensors_of(&case.path("hf/model.safetensors"));
    assert!(tensors.values().all(|(dtype, ..)| *dtype == Dtype::BF16));
    ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output().expect_success();
    let (before, after) =
        (values(&case.path("run"), 2, Kind::Weight), values(&case.path("in"), 0, Kind::Weight));
    for (name, ours) in &before {
        let rounded = ours.iter().map(|bits| half::bf16::from_f32(f32::from_bits(*bits)).to_f32().to_bits());
        assert!(rounded.eq(after[name].iter().copied()), "{name}");
    }
    assert!(before != after, "rounding changed something");
}

#[test]
fn an_export_in_many_files_has_an_index_and_comes_in_the_same() {
    let case = trained();
    let words: [&dyn AsRef<Path>; 5] =
        [&"export", &"--max-shard-size", &"8KB", &case.path("run"), &case.path("hf")];
    ckpt(&words).output().expect_success();
    let index = std::fs::read(case.path("hf/model.safetensors.index.json")).expect("an index");
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let map = index["weight_map"].as_object().expect("a map");
    let (mut n_tensors, mut n_bytes, mut files) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(case.path("hf")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let tensors = tensors_of(&entry.path());
        let bytes: usize = tensors.values().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(bytes <= 8000 || tensors.len() == 1, "{name}: {bytes} bytes in {} tensors", tensors.len());
        assert!(tensors.keys().all(|tensor| map[tensor] == name.as_str()), "{name}");
        n_tensors += tensors.len();
        n_bytes += bytes;
        files.push(name);
    }
    assert!(files.len() > 5 && map.len() == n_tensors, "{files:?}");
    assert_eq!(index["metadata"]["total_size"], n_bytes);
    ckpt(&[&"import", &case.path("hf"), &case.path("in"), &"--ranks", &"5"]).output().expect_success();
    assert!(values(&case.path("in"), 0, Kind::Weight) == values(&case.path("run"), 2, Kind::Weight));

    // The index may be named itself, and must be where one file with everything lies beside it.
    let index_path = case.path("hf/model.safetensors.index.json");
    std::fs::copy(case.path("hf").join(&files[0]), case.path("hf/model.safetensors")).unwrap();
    let said = ckpt(&[&"import", &case.path("hf"), &case.path("no")]).output().expect_code(2);
    said.expect_text("has both model.safetensors and model.safetensors.index.json")
        .expect_text("name one of them");
    ckpt(&[&"import", &index_path, &case.path("in_2")]).output().expect_success();
    assert!(values(&case.path("in_2"), 0, Kind::Weight) == values(&case.path("run"), 2, Kind::Weight));
    std::fs::remove_file(case.path("hf/model.safetensors")).unwrap();

    // One file gone, one of another length: both are named.
    files.sort();
    std::fs::remove_file(case.path("hf").join(&files[1])).unwrap();
    let cut = case.path("hf").join(&files[2]);
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 4]).unwrap();
    let said = ckpt(&[&"import", &case.path("hf"), &case.path("no")]).output().expect_code(2);
    said.expect_text(&files[1]).expect_text(&files[2]);
    assert!(!case.path("no").exists(), "nothing was begun");
}

#[test]
fn every_tensor_amiss_is_named_at_once_with_code_2() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    let file = case.path("hf/model.safetensors");
    let whole = tensors_of(&file);
    let mut tensors = whole.clone();
    tensors.remove("transformer.ln_f.bias");
    tensors.remove("transformer.h.1.mlp.c_fc.weight");
    tensors.insert("transformer.h.2.ln_1.bias".into(), (Dtype::F32, vec![20], vec![0; 80]));
    // The layout of a Linear instead of a Conv1D.
    tensors.get_mut("transformer.h.0.attn.c_attn.weight").unwrap().1.reverse();
    let ln = tensors.get_mut("transformer.h.0.ln_2.weight").unwrap();
    *ln = (Dtype::I32, vec![20], vec![0; 80]);
    let mut head = tensors["transformer.wte.weight"].clone();
    head.2[7] ^= 1;
    tensors.insert("lm_head.weight".into(), head);
    write_tensors(&file, &tensors);
    ckpt(&[&"import", &case.path("hf"), &case.path("in")])
        .output()
        .expect_code(2)
        .expect_text("6 tensors are wrong")
        .expect_text("transformer.ln_f.bias is missing")
        .expect_text("transformer.h.1.mlp.c_fc.weight is missing")
        .expect_text("transformer.h.2.ln_1.bias is unexpected")
        .expect_text(
            "transformer.h.0.attn.c_attn.weight is of shape [60, 20], but [20, 60] according to config.json",
        )
        .expect_text("transformer.h.0.ln_2.weight is of type I32")
        .expect_text("lm_head.weight differs from transformer.wte.weight");
    assert!(!case.path("in").exists(), "nothing was begun");

    // What does no harm: a head that is the embedding, masks of old versions, names without the prefix.
    let mut old: Tensors = whole
        .iter()
        .map(|(name, t)| (name.trim_start_matches("transformer.").to_string(), t.clone()))
        .collect();
    old.insert("lm_head.weight".into(), whole["transformer.wte.weight"].clone());
    old.insert("h.0.attn.bias".into(), (Dtype::U8, vec![1, 1, 2, 2], vec![1; 4]));
    write_tensors(&file, &old);
    ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output().expect_success();
    assert!(values(&case.path("in"), 0, Kind::Weight) == values(&case.path("run"), 2, Kind::Weight));
}

#[test]
fn a_config_of_another_model_is_refused_key_by_key() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    let path = case.path("hf/config.json");
    let whole: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let refused = |config: &str| {
        std::fs::write(&path, config).unwrap();
        ckpt(&[&"import", &case.path("hf"), &case.path("in")])
            .output()
            .expect_code(2)
            .expect_text("config.json")
    };
    let mut config = whole.clone();
    config["activation_function"] = "relu".into();
    config["n_inner"] = 77.into();
    config["n_embd"] = "wide".into();
    refused(&config.to_string())
        .expect_text("activation_function is")
        .expect_text("n_inner")
        .expect_text("n_embd is");
    config = whole.clone();
    config["model_type"] = "mamba".into();
    refused(&config.to_string()).expect_text("not \"gpt2\" or \"llama\" or \"qwen3\"");
    config = whole;
    config["n_head"] = 3.into();
    refused(&config.to_string()).expect_text("n_head");
    config["n_head"] = 4.into();
    config["rope_scaling"] = serde_json::json!({ "factor": 2.0 });
    config["quantization_config"] = serde_json::json!({ "bits": 4 });
    refused(&config.to_string())
        .expect_text("rope_scaling is {\"factor\":2.0}, and this program does not know what it means")
        .expect_text("quantization_config is {\"bits\":4}");
    refused("{ not JSON");
    refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\n").expect_text("a Git LFS pointer");
    std::fs::remove_file(&path).unwrap();
    ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output().expect_code(2).expect_text("is required");
}

#[test]
fn damaged_headers_and_lengths_are_errors_that_name_the_file() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    let file: PathBuf = case.path("hf/model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap());
    let refused = |what: &str, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let said = ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output();
        assert_eq!(said.code, 2, "{what}: {said}");
        said.expect_text("model.safetensors");
    };
    for wrong in [0, 1, length - 1, length + 1, whole.len() as u64, 99 << 20, 1 << 40, u64::MAX - 7, u64::MAX]
    {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&wrong.to_le_bytes());
        refused(&format!("header length {wrong}"), &bytes);
    }
    for n in [0, 1, 7, 8, 9, 8 + length as usize, whole.len() - 1] {
        refused(&format!("{n} bytes"), &whole[..n]);
    }
    for (bytes, is) in [
        (
            &b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"[..],
            "a Git LFS pointer; fetch",
        ),
        (b"\n<!DOCTYPE html><html><body>Not found", "an HTML page"),
        (b"{\"metadata\": {}, \"weight_map\": {}}", "a JSON document"),
        (b"PK\x03\x04\x14\0\0\0archive", "a zip archive"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0", "a gzip file"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let said = ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output().expect_code(2);
        said.expect_text(&format!("model.safetensors: not a safetensors file but {is}"));
    }
    refused("a byte too many", &[whole.as_slice(), &[0]].concat());
    // A tensor that claims to begin elsewhere than where the one before ends.
    let header = String::from_utf8(whole[8..8 + length as usize].to_vec()).unwrap();
    let moved = header.replacen("\"data_offsets\":[0,", "\"data_offsets\":[4,", 1);
    assert_ne!(moved, header);
    refused("a gap", &[&whole[..8], moved.as_bytes(), &whole[8 + length as usize..]].concat());
    std::fs::write(&file, &whole).unwrap();
    ckpt(&[&"import", &case.path("hf"), &case.path("in")]).output().expect_success();
}

#[test]
fn a_value_that_is_not_finite_is_named_and_weights_that_compute_none_end_with_code_4() {
    let case = trained();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")]).output().expect_success();
    let file = case.path("hf/model.safetensors");
    let whole = tensors_of(&file);
    let set = |values: &[(&str, usize, f32)]| {
        let mut tensors = whole.clone();
        for (name, at, value) in values {
            tensors.get_mut(*name).unwrap().2[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
        }
        write_tensors(&file, &tensors);
    };
    // Read as it lies, and read transposed.
    for (name, at, value) in [
        ("transformer.ln_f.weight", 3, f32::NAN),
        ("transformer.h.1.mlp.c_fc.weight", 7, f32::INFINITY),
        ("transformer.wte.weight", 0, f32::NEG_INFINITY),
    ] {
        set(&[(name, at, value)]);
        let said =
            ckpt(&[&"import", &case.path("hf"), &case.path("in"), &"--ranks", &"3"]).output().expect_code(2);
        said.expect_text(&format!("{name}: element {at} is {value}"));
        assert!(!case.path("in/checkpoints/step_00000000").exists(), "nothing is left");
    }
    // Finite, and too large to compute with.
    set(&[("transformer.ln_f.weight", 3, 3e38), ("transformer.wte.weight", 97 * 20 + 3, 1e4)]);
    ckpt(&[&"import", &case.path("hf"), &case.path("in"), &"--ranks", &"3"]).output().expect_success();
    for n_ranks in [1, 2] {
        let sample = Run::new(n_ranks).arg("sample").arg(case.path("in")).args([
            "data.format=text",
            "data.tokenizer=bytes",
            "--prompt",
            "a",
            "--max-tokens",
            "4",
        ]);
        let said =
            sample.output().expect_code(4).expect_text("the model's weights are non-finite or too large");
        assert_eq!(said.text().matches("zero3: ").count(), 1, "said once: {said}");
    }
    Run::new(2)
        .arg("eval")
        .arg(case.path("in"))
        .arg(case.deck())
        .output()
        .expect_code(4)
        .expect_text("the loss is ");
    let init = format!("model.init_from={}", case.path("in/checkpoints/step_00000000").display());
    let said =
        case.train(2, "on", &["train.steps=2", "train.max_skipped_steps=1", &init]).output().expect_code(4);
    assert!(!said.text().contains("lower optim.lr"), "{said}");
}

/// Logits come out as differences of losses: sequences that end in another target differ by its logit alone.
fn logits_agree(golden: &str, sizes: &[&str]) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(golden);
    let about: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.join("logits.json")).expect("checked in")).unwrap();
    let logits: Vec<f64> = serde_json::from_value(about["logits"].clone()).unwrap();
    let prompt: Vec<u16> = serde_json::from_value(about["prompt"].clone()).unwrap();
    let (seq_len, vocab_size) = (prompt.len(), logits.len());

    let case = Case::tiny();
    ckpt(&[&"import", &golden, &case.path("in"), &"--ranks", &"3"]).output().expect_success();
    let samples = (0..vocab_size as u16).flat_map(|last| prompt.iter().copied().chain([last]));
    let bytes: Vec<u8> = samples.flat_map(u16::to_le_bytes).collect();
    std::fs::write(case.path("prompts.bin"), bytes).unwrap();
    let words = [
        "model.n_layer=2".to_string(),
        format!("model.seq_len={seq_len}"),
        format!("model.vocab_size={vocab_size}"),
        format!("model.init_from={}", case.path("in").display()),
        format!("data.train={}", case.path("prompts.bin").display()),
        "data.format=raw_u16".into(),
        "data.tokenizer=none".into(),
        format!("data.stride={}", seq_len + 1),
        "data.shuffle=false".into(),
        "data.val_fraction=0".into(),
        format!("train.steps={vocab_size}"),
        "train.global_batch_size=1".into(),
        "train.eval_every=0".into(),
        "checkpoint.every=0".into(),
        // Weights stay what they are: this is below their last digit.
        "optim.lr=1e-30".into(),
        "optim.min_lr=0".into(),
        "optim.weight_decay=0".into(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).chain(sizes.iter().copied()).collect();
    case.train(1, "run", &words).output().expect_success();
    let losses = Steps::read(&case.path("run")).numbers("loss");
    assert_eq!(losses.len(), vocab_size);
    for (token, (loss, logit)) in losses.iter().zip(&logits).enumerate() {
        let ours = seq_len as f64 * (losses[0] - loss);
        let theirs = logit - logits[0];
        // A loss has the rounding of f32, and the difference of two of them is multiplied.
        assert!((ours - theirs).abs() < 1e-4, "logit of {token} above that of 0: {ours}, golden {theirs}");
    }
    let spread = logits.iter().fold(0.0f64, |max, x| max.max((x - logits[0]).abs()));
    assert!(spread > 1.0, "the logits differ enough to be told apart: {spread}");
}

#[test]
fn an_import_of_what_transformers_wrote_has_its_logits_in_float64() {
    logits_agree("hf_gpt2", &["model.n_head=2", "model.d_model=20"]);
    logits_agree("hf_llama", &LLAMA);
    logits_agree("hf_qwen3", &QWEN3);
}

/// The sizes of tests/golden/hf_qwen3.
const QWEN3: [&str; 7] = [
    "model.family=qwen3",
    "model.n_head=6",
    "model.n_kv_head=2",
    "model.head_dim=10",
    "model.d_model=24",
    "model.d_ff=40",
    "model.rope_theta=10000",
];

#[test]
fn a_qwen3_goes_out_under_its_names_and_comes_in_again_with_the_same_bits() {
    let case = Case::tiny();
    case.train(2, "run", &[&QWEN3[..], &["train.steps=2", "model.tied=true"]].concat())
        .output()
        .expect_success();
    ckpt(&[&"export", &case.path("run"), &case.path("hf")])
        .output()
        .expect_success()
        .expect_text("24 tensors");
    ckpt(&[&"import", &case.path("hf"), &case.path("in"), &"--ranks", &"3"]).output().expect_success();
    let weights = values(&case.path("run"), 2, Kind::Weight);
    assert!(values(&case.path("in"), 0, Kind::Weight) == weights);
    let tensors = tensors_of(&case.path("hf/model.safetensors"));
    for (name, shape) in [("q_proj", vec![60, 24]), ("k_norm", vec![10]), ("o_proj", vec![24, 60])] {
        assert_eq!(tensors[&format!("model.layers.1.self_attn.{name}.weight")].1, shape, "{name}");
    }
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(case.path("hf/config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["head_dim"]), (&"qwen3".into(), &10.into()));
}

/// The sizes of tests/golden/hf_llama.
const LLAMA: [&str; 5] =
    ["model.family=llama", "model.n_head=6", "model.n_kv_head=2", "model.d_model=24", "model.d_ff=40"];

#[test]
fn a_llama_goes_out_under_its_names_and_comes_in_again_with_the_same_bits() {
    let case = Case::tiny();
    for (tied, n_tensors) in [("false", "21 tensors"), ("true", "20 tensors")] {
        let (run, hf, back) = (format!("run {tied}"), format!("hf {tied}"), format!("in {tied}"));
        let tied_is = format!("model.tied={tied}");
        let words = [&LLAMA[..], &["train.steps=2", tied_is.as_str()]].concat();
        case.train(2, &run, &words).output().expect_success();
        ckpt(&[&"export", &case.path(&run), &case.path(&hf)])
            .output()
            .expect_success()
            .expect_text(n_tensors);
        ckpt(&[&"import", &case.path(&hf), &case.path(&back), &"--ranks", &"3"]).output().expect_success();
        let weights = values(&case.path(&run), 2, Kind::Weight);
        assert!(values(&case.path(&back), 0, Kind::Weight) == weights);

        let tensors = tensors_of(&case.path(&hf).join("model.safetensors"));
        let (_, shape, bytes) = &tensors["model.layers.1.self_attn.v_proj.weight"];
        let (first, width) = ((6 + 2) * 4, 24);
        let ours = &weights["layers.1.self_attn.qkv_proj.weight"][first * width..];
        assert_eq!((shape, floats(bytes).len()), (&vec![2 * 4, width], ours.len()));
        assert!(floats(bytes).iter().map(|x| x.to_bits()).eq(ours.iter().copied()), "rows of v");
        assert_eq!(tensors.contains_key("lm_head.weight"), tied == "false");
    }
    // What is another model is named.
    let path = case.path("hf false/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["rope_scaling"] = serde_json::json!({ "rope_type": "llama3", "factor": 32.0 });
    config["head_dim"] = 8.into();
    config["attention_bias"] = true.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let said = ckpt(&[&"import", &case.path("hf false"), &case.path("no")]).output().expect_code(2);
    said.expect_text("rope_scaling.rope_type is")
        .expect_text("head_dim is 8")
        .expect_text("attention_bias is true");
}
