//! From files to samples: what is refused, what each sample holds, what a scan finds.

use super::*;
use proptest::prelude::*;

/// A data set over files with the given bytes; keeps the directory alive.
fn text(files: &[&[u8]], edit: impl FnOnce(&mut DataConfig)) -> (tempfile::TempDir, Result<Dataset>) {
    let dir = tempfile::tempdir().unwrap();
    for (i, content) in files.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{i}.txt")), content).unwrap();
    }
    let mut cfg = DataConfig {
        train: vec![format!("{}/*.txt", dir.path().display())],
        val: vec![],
        val_fraction: 0.0,
        format: "auto".into(),
        vocab_size: 256,
        seq_len: 4,
        stride: 0,
        val_stride: 0,
        n_val_samples: 0,
        seed: 1,
        shuffle: false,
    };
    edit(&mut cfg);
    let data = Dataset::open(&cfg);
    (dir, data)
}

fn message(result: Result<Dataset>) -> String {
    match result {
        Err(Error::Input(text)) => text,
        other => panic!("expected Error::Input, got {other:?}"),
    }
}

fn sample(space: &SampleSpace, g: u64) -> (Vec<u32>, Vec<u32>) {
    let (mut tokens, mut targets) = (vec![0; space.seq_len], vec![0; space.seq_len]);
    space.fill(g..g + 1, &mut tokens, &mut targets);
    (tokens, targets)
}

#[test]
fn empty_files_alone_are_refused_and_beside_others_are_nothing() {
    assert!(message(text(&[b"", b""], |_| ()).1).contains("0.txt and 1 more file: 0 bytes"));
    let (_dir, data) = text(&[b"", b"abc", b"", b"def"], |_| ());
    let data = data.unwrap();
    assert_eq!(data.train().n_tokens(), 6);
    assert_eq!(sample(data.train(), 0).1, b"bcde".map(u32::from));
}

#[test]
fn a_rank_that_opens_the_broadcast_list_sees_the_samples_of_the_rank_that_resolved_it() {
    let mut cfg = None;
    let (dir, data) = text(&[b"the quick brown fox", b"jumps over the lazy dog"], |c| {
        c.shuffle = true;
        cfg = Some(c.clone());
    });
    let (cfg, data) = (cfg.unwrap(), data.unwrap());
    let list = ResolvedFiles::resolve(&cfg.train, &cfg.val).unwrap().to_bytes();
    std::fs::write(dir.path().join("0_late.txt"), "a file that appears meanwhile").unwrap();
    let other = Dataset::open_files(&cfg, &ResolvedFiles::from_bytes(&list).unwrap()).unwrap();
    for g in 0..3 * data.train().n_windows() {
        assert_eq!(sample(data.train(), g), sample(other.train(), g), "sample {g}");
    }
}

#[test]
fn one_token_too_few_is_refused_and_exactly_one_sample_is_enough() {
    let refused = message(text(&[b"abcd"], |_| ()).1);
    assert!(refused.contains("0.txt: 4 tokens are too few") && refused.contains("= 5"), "{refused}");
    let (_dir, data) = text(&[b"abcde"], |_| ());
    let data = data.unwrap();
    assert_eq!(data.train().n_windows(), 1);
    assert_eq!(sample(data.train(), 17), (b"abcd".map(u32::from).into(), b"bcde".map(u32::from).into()));
}

#[test]
fn a_split_that_leaves_either_side_too_short_says_what_would_do() {
    let bytes = [b'x'; 100];
    let val = message(text(&[&bytes], |cfg| cfg.val_fraction = 0.03).1);
    assert!(val.contains("leaves 3 for validation") && val.contains("set at least 0.05"), "{val}");
    let train = message(text(&[&bytes], |cfg| cfg.val_fraction = 0.98).1);
    assert!(train.contains("leaves 2 for training") && train.contains("set at most 0.95"), "{train}");
    for good in [0.05, 0.95] {
        let (_dir, data) = text(&[&bytes], |cfg| cfg.val_fraction = good);
        data.unwrap();
    }
}

#[test]
fn the_validation_tail_and_the_training_head_share_no_token() {
    let bytes: Vec<u8> = (0..=255).collect();
    let (_dir, data) = text(&[&bytes[..200], &bytes[200..]], |cfg| cfg.val_fraction = 0.25);
    let data = data.unwrap();
    let (train, val) = (data.train(), data.val().unwrap());
    assert_eq!((train.n_tokens(), val.n_tokens()), (192, 64));
    let largest = (0..train.n_windows()).flat_map(|g| sample(train, g).1).max();
    assert!(largest < Some(192), "{largest:?}");
    assert_eq!(sample(val, 0).0, [192, 193, 194, 195]);
    assert_eq!(sample(val, val.n_windows()), sample(val, 0), "validation wraps around");
    assert_eq!(sample(val, 1).0, [196, 197, 198, 199]);
    assert_eq!(data.n_bytes(), 256, "the shared stream is scanned once");
    assert_eq!(data.scan(&|_| ()).unwrap().n_bytes, 256);
}

#[test]
fn validation_files_beat_the_fraction_and_overlap_is_noticed() {
    let (_dir, data) = text(&[b"abcdefghij", b"klmnopqrst"], |cfg| {
        cfg.val_fraction = 0.5;
        cfg.val = vec![cfg.train[0].replace('*', "1")];
    });
    let data = data.unwrap();
    assert_eq!((data.train().n_tokens(), data.val().unwrap().n_tokens()), (20, 10));
    assert!(data.warnings()[0].contains("1.txt is trained on and validated on"));
}

#[test]
fn training_and_validation_of_two_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("v.u16"), [1; 40]).unwrap();
    let (_dir, data) =
        text(&[b"abcdefghij"], |cfg| cfg.val = vec![format!("{}/v.u16", dir.path().display())]);
    assert!(message(data).contains("both must be of one format"));
}

#[test]
fn validation_windows_are_spread_over_the_whole_whatever_the_stride_of_training() {
    let content: Vec<u8> = (0..=200).collect();
    let starts = |edit: &dyn Fn(&mut DataConfig)| -> Vec<u32> {
        let (_dir, data) = text(&[&content], |cfg| {
            cfg.val = cfg.train.clone();
            edit(cfg);
        });
        let (_, data) = (_dir, data.unwrap());
        (0..5).map(|g| sample(data.val().unwrap(), g).0[0]).collect()
    };
    // 50 windows of 4 and a target.
    for stride in [0, 1, 7, 150] {
        assert_eq!(
            starts(&|cfg| (cfg.stride, cfg.n_val_samples) = (stride, 5)),
            [0, 40, 80, 120, 160],
            "{stride}"
        );
    }
    assert_eq!(starts(&|cfg| cfg.n_val_samples = 3), [0, 64, 132, 0, 64], "the same ones again");
    assert_eq!(starts(&|cfg| (cfg.val_stride, cfg.n_val_samples) = (1, 4)), [0, 49, 98, 147, 0]);
    // As many windows as samples, or fewer: each one, in file order.
    for n in [0, 50, 51] {
        assert_eq!(starts(&|cfg| cfg.n_val_samples = n), [0, 4, 8, 12, 16], "{n}");
    }
}

#[test]
fn windows_overlap_with_a_small_stride_and_skip_with_a_large_one() {
    let (_dir, data) = text(&[b"abcdefghij"], |cfg| cfg.stride = 1);
    let data = data.unwrap();
    assert_eq!(data.train().n_windows(), 6);
    assert_eq!(sample(data.train(), 5).1, b"ghij".map(u32::from));
    let (_dir, data) = text(&[b"abcdefghij"], |cfg| cfg.stride = 5);
    let data = data.unwrap();
    assert_eq!(data.train().n_windows(), 2);
    assert_eq!(sample(data.train(), 1).0, b"fghi".map(u32::from));
}

#[test]
fn each_epoch_visits_every_window_once_in_its_own_order() {
    let bytes: Vec<u8> = (0..=255).collect();
    let (_dir, data) = text(&[&bytes], |cfg| cfg.shuffle = true);
    let data = data.unwrap();
    let n = data.train().n_windows();
    let epoch = |e: u64| (e * n..(e + 1) * n).map(|g| data.train().epoch_and_window(g).1).collect::<Vec<_>>();
    let (first, second) = (epoch(0), epoch(1));
    assert_ne!(first, second);
    for mut windows in [first, second] {
        windows.sort_unstable();
        assert_eq!(windows, (0..n).collect::<Vec<_>>());
    }
    assert_eq!(data.train().epoch_and_window(u64::MAX).0, u64::MAX / n, "the index is unbounded");
    assert_eq!(data.train().order_name(), "feistel-v1");
}

#[test]
fn bad_tokens_of_both_lists_are_reported_together() {
    let (_dir, data) = text(&[b"abcdefghij", b"ABCDEFGHIJ"], |cfg| {
        cfg.vocab_size = 70;
        cfg.val = vec![cfg.train[0].replace('*', "1")];
    });
    let err = data.unwrap().scan(&|_| ()).unwrap_err().to_string();
    assert_eq!(err.lines().count(), 3, "{err}");
    assert!(err.contains("data.train") && err.contains("data.val") && err.contains("is 97"), "{err}");
}

#[test]
fn a_moved_copy_has_the_same_digest_and_a_changed_one_another() {
    let digest = |files: &[&[u8]]| {
        let (_dir, data) = text(files, |_| ());
        data.unwrap().scan(&|_| ()).unwrap().digest
    };
    assert_eq!(digest(&[b"hello world"]), digest(&[b"hello world"]));
    assert_ne!(digest(&[b"hello world"]), digest(&[b"hello worle"]));
    assert_eq!(digest(&[b"hello world"]).len(), 32);
}

#[test]
fn the_entropy_of_a_range_is_that_of_its_tokens() {
    let (_dir, data) = text(&[b"aaaaabcd"], |_| ());
    let data = data.unwrap();
    assert_eq!(data.train().unigram_entropy_nats(0..5), 0.0);
    assert!((data.train().unigram_entropy_nats(4..8) - 4f64.ln()).abs() < 1e-15);
    let all = data.train().unigram_entropy_nats(0..u64::MAX);
    let known = -(5.0 / 8.0 * (5.0 / 8.0f64).ln() + 3.0 / 8.0 * (1.0 / 8.0f64).ln());
    assert!((all - known).abs() < 1e-15, "{all} {known}");
}

#[test]
fn the_info_report_has_every_number_and_reads_back_from_json() {
    let (_dir, data) = text(&[b"hello\nworld hello world"], |cfg| cfg.val_fraction = 0.3);
    let info = DataInfo::gather(&data.unwrap(), 10, 4, None, &|_| ()).unwrap();
    assert_eq!((info.train.n_tokens, info.train.n_windows), (17, 4));
    assert_eq!(info.epochs, 10.0);
    assert_eq!(info.train.max_token, u32::from(b'w'));
    let shown = info.to_string();
    for part in
        ["17 tokens, text", "23 bytes", "hello\\nworld", "the end of the training stream", "10.000", "nats"]
    {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let json = serde_json::to_string(&info).unwrap();
    assert_eq!(serde_json::from_str::<DataInfo>(&json).unwrap(), info);
}

/// Counts take memory by the largest id, whatever the size of the file.
#[test]
fn token_files_with_ids_that_no_tokenizer_has_are_refused_before_they_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.u32");
    std::fs::write(&path, [1u32, 4_194_304].map(u32::to_le_bytes).as_flattened()).unwrap();
    let refused = TokenFilesInfo::gather(&[path], "raw_u32", None, None, &|_| ()).unwrap_err().to_string();
    let words = "token 1 (byte offset 4) is 4194304, outside the vocabulary of 4194304";
    assert!(refused.contains(words), "{refused}");
}

proptest! {
    #[test]
    fn the_micro_batches_of_a_step_cover_its_samples_in_order(
        n_micro in 1usize..30, size in 1usize..5, base in 0u64..1000,
    ) {
        let of_step: Vec<u64> = (0..n_micro).flat_map(|j| micro_batch_samples(base, j, size)).collect();
        prop_assert_eq!(of_step, (base..base + (n_micro * size) as u64).collect::<Vec<_>>());
    }
}
