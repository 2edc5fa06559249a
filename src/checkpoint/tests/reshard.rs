use proptest::prelude::*;

use super::slice_map::{Placed, ranges};
use super::*;

/// DeepSpeed #2898, #3810, #7599: restored on any rank count from any other, by the manifest and not by file
/// names.
#[test]
fn every_world_size_restores_on_every_other_bit_for_bit() {
    for n in [1, 2, 3, 4, 5, 8] {
        let run = tempfile::tempdir().unwrap();
        let dir = save(run.path(), 1, 100, n);
        assert_eq!(dir, run.path().join("checkpoints/step_00000100"));
        assert!(dir.join(format!("rank_0000_of_{n:04}.h5")).exists());
        for m in [1, 2, 3, 4, 5, 8] {
            check_restores(&dir, 1, m);
        }
    }
}

#[test]
fn any_range_reads_the_saved_bits_across_file_borders() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 3, 1, 4);
    let mut reader = Reader::open(&dir).unwrap();
    let (idx, (name, shape)) = (3, PARAMS[3]);
    for start in 0..=numel(shape) {
        for end in start..=numel(shape) {
            let mut out = vec![0.0; end - start];
            reader.read(name, Kind::Optim(ExpAvg), start..end, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&values(3, idx, Kind::Optim(ExpAvg), start..end)));
        }
    }
}

/// DeepSpeed #1896, #3033: a tied head is dropped on load, or tied to the wrong tensor.
#[test]
fn alias_reads_the_parameter_it_means() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 3, 1, 2);
    let mut reader = Reader::open(&dir).unwrap();
    let mut out = vec![0.0; 505];
    reader.read("lm_head.weight", Kind::Weight, 0..505, &mut out).unwrap();
    assert_eq!(bits(&out), bits(&values(3, 4, Kind::Weight, 0..505)));
    assert_eq!(reader.manifest().aliases, manifest(1, 2, Vec::new()).aliases);
    let why = message(reader.read("h.9.bias", Kind::Weight, 0..1, &mut [0.0]));
    assert!(why.contains("h.9.bias"), "{why}");
}

#[test]
fn unverified_ranks_together_read_the_state_once() {
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), 5, 1, 3);
    for m in [1, 2, 4, 7] {
        let mut total = 0;
        for rank in 0..m {
            let mut reader = Reader::open(&dir).unwrap();
            reader.verify(false);
            let mut own = 0;
            for (name, shape) in PARAMS {
                let range = shard_range(numel(shape), m, rank);
                own += range.len() as u64 * 12;
                for kind in KINDS {
                    let mut out = vec![0.0; range.len()];
                    reader.read(name, kind, range.clone(), &mut out).unwrap();
                }
            }
            assert_eq!(reader.bytes_read(), own);
            total += own;
        }
        assert_eq!(total, 12 * manifest(1, 1, Vec::new()).psi as u64);
    }
}

/// One parameter of several digest blocks, its borders nowhere near a block's.
#[test]
fn verified_read_of_a_long_slice_reads_at_most_a_block_more_at_each_end() {
    let n = 2 * manifest::DIGEST_BLOCK + 12_345;
    let block = manifest::digest_block(n, KINDS.len());
    assert!(block < 10_000, "several blocks in each piece that is read: {block}");
    let run = tempfile::tempdir().unwrap();
    let dir = prepare(run.path(), 1).unwrap();
    let held = Stored::of(&KINDS, |kind| values(9, 0, kind, 0..n));
    let slice = Slice { param: "wte", global_shape: &[n], start: 0, end: n };
    let estimate = estimate_bytes(&[slice], KINDS.len());
    let slice = SliceValues { slice, values: held.each_ref().map(|v| &v[..]) };
    let file = write_rank_file(&dir, 0, 1, 1, &[slice]).unwrap();
    assert!((file.bytes..file.bytes + (64 << 10)).contains(&estimate), "{estimate} for {file:?}");
    let manifest = Manifest {
        step: 1,
        psi: n,
        digest_block: block,
        params: vec![Param::whole("wte", &[n], true)],
        files: vec![file],
        ..Manifest::default()
    };
    let dir = commit(run.path(), &manifest).unwrap();
    let mut reader = Reader::open(&dir).unwrap();
    let mut before = 0;
    for range in [
        0..n,
        1..2,
        block - 1..block + 1,
        block..2 * block,
        block + 3..manifest::DIGEST_BLOCK + 2 * block + 7,
        n - 20_000..n,
    ] {
        let mut out = vec![0.0; range.len()];
        reader.read("wte", Kind::Optim(ExpAvgSq), range.clone(), &mut out).unwrap();
        assert_eq!(bits(&out), bits(&held.states[ExpAvgSq][range.clone()]), "{range:?}");
        let read = reader.bytes_read() - before;
        assert!(read >= 4 * range.len() as u64, "{range:?} read {read}");
        assert!(read <= 4 * (range.len() + 2 * (block - 1)) as u64, "{range:?} read {read}");
        before = reader.bytes_read();
    }
}

/// Slices of one parameter of `n_elements` on `n` ranks, in a manifest whose files are in another order than
/// its ranks.
fn placed(n_elements: usize, n: usize) -> Vec<Placed> {
    let files = (0..n)
        .rev()
        .map(|rank| {
            let range = shard_range(n_elements, n, rank);
            FileRecord {
                rank,
                name: rank_file_name(rank, n),
                bytes: 0,
                digest: String::new(),
                structure: None,
                slices: vec![manifest::SliceRecord {
                    param: "p".to_string(),
                    start: range.start,
                    end: range.end,
                    digests: manifest::SliceDigests::default(),
                }],
            }
        })
        .collect();
    let manifest =
        Manifest { params: vec![Param::whole("p", &[n_elements], false)], files, ..Manifest::default() };
    manifest.placed().remove("p").unwrap()
}

/// Walks the ranges of all m readers; every element must come up exactly once, from the file and place that
/// hold it.
fn check_exactly_once(n_elements: usize, n: usize, m: usize) {
    let placed = placed(n_elements, n);
    let mut next = 0;
    for rank in 0..m {
        let wanted = shard_range(n_elements, m, rank);
        let mut filled = 0;
        for part in ranges(&placed, wanted.clone()) {
            let owner = n - 1 - part.file_idx;
            let held = shard_range(n_elements, n, owner);
            assert_eq!(part.slice_idx, 0);
            assert_eq!(part.out_range.start, filled, "{part:?}");
            assert_eq!(part.out_range.len(), part.file_range.len(), "{part:?}");
            assert!(part.file_range.end <= held.len(), "{part:?} in {held:?}");
            assert_eq!(held.start + part.file_range.start, next, "{part:?}");
            assert!(!part.file_range.is_empty(), "{part:?}");
            next += part.file_range.len();
            filled = part.out_range.end;
        }
        assert_eq!(filled, wanted.len(), "rank {rank} of {m}");
    }
    assert_eq!(next, n_elements);
}

proptest! {
    #[test]
    fn every_element_comes_from_exactly_one_place(
        n_elements in 0usize..3000, n in 1usize..=64, m in 1usize..=64,
    ) {
        check_exactly_once(n_elements, n, m);
    }

    #[test]
    fn any_range_is_covered_in_order(
        n_elements in 1usize..3000, n in 1usize..=64, cut in (0usize..3000, 0usize..3000),
    ) {
        let (a, b) = (cut.0 % (n_elements + 1), cut.1 % (n_elements + 1));
        let wanted = a.min(b)..a.max(b);
        let parts = ranges(&placed(n_elements, n), wanted.clone());
        let sources: Vec<usize> = parts
            .iter()
            .flat_map(|p| {
                let start = shard_range(n_elements, n, n - 1 - p.file_idx).start;
                p.file_range.clone().map(move |i| start + i)
            })
            .collect();
        prop_assert_eq!(sources, wanted.collect::<Vec<_>>());
    }
}

#[test]
fn every_element_comes_from_exactly_one_place_on_thousands_of_ranks() {
    for n_elements in [1, 4095, 4096, 4097, 50_257 * 3, 1_000_003] {
        for (n, m) in [(4096, 4096), (4096, 1), (1, 4096), (4093, 3001), (7, 4096)] {
            check_exactly_once(n_elements, n, m);
        }
    }
}

#[test]
fn diff_finds_the_one_flipped_bit_and_nothing_on_another_world_size() {
    let run = tempfile::tempdir().unwrap();
    let (a, b) = (save(run.path(), 1, 1, 3), save(run.path(), 1, 2, 5));
    let equal = diff(&a, &b).unwrap();
    assert!(equal.is_equal(), "{equal}");
    assert_eq!(equal.n_compared, 3 * manifest(1, 1, Vec::new()).psi as u64);

    let dir = prepare(run.path(), 3).unwrap();
    let write = |dir: &Path, exp_avg_sq: &[f32]| {
        let values = Stored::of(&KINDS, |kind| match kind {
            Kind::Weight => &[1.0f32; 3],
            Kind::Optim(ExpAvgSq) => exp_avg_sq,
            Kind::Optim(_) => &[2.0; 3],
        });
        let slice = Slice { param: "h.0.ln_1.bias", global_shape: &[3], start: 0, end: 3 };
        vec![write_rank_file(dir, 0, 1, 3, &[SliceValues { slice, values }]).unwrap()]
    };
    let files = write(&dir, &[3.0, 3.5, 3.0]);
    let params = vec![Param::whole("h.0.ln_1.bias", &[3], false)];
    let small = Manifest { step: 3, psi: 3, params, files, ..Manifest::default() };
    let c = commit(run.path(), &small).unwrap();
    let d = {
        let other = run.path().join("other");
        let dir = prepare(&other, 3).unwrap();
        let files = write(&dir, &[3.0, 3.25, 3.0]);
        commit(&other, &Manifest { files, ..small.clone() }).unwrap()
    };
    let found = diff(&c, &d).unwrap();
    assert_eq!(found.differing.len(), 1);
    let only = &found.differing[0];
    assert_eq!((only.kind, only.n_differing, only.first), (Kind::Optim(ExpAvgSq), 1, 1));
    assert_eq!(only.max_abs_diff, 0.25);
    assert_eq!(diff(&a, &c).unwrap().only_in_a.len(), PARAMS.len() - 1);
}

#[test]
fn blocks_of_digests_are_short_for_small_models_and_bounded_for_large_ones() {
    let (tiny, gpt2, seven_billion) = (800_000, 124_000_000, 7_000_000_000);
    let of_adamw = |psi| manifest::digest_block(psi, KINDS.len());
    assert_eq!([0, tiny, gpt2, seven_billion].map(of_adamw), [1 << 10, 1 << 10, 1 << 14, 1 << 20]);
    // Saved by one rank, restored on seven: each reads its share and a block at each end at most.
    let run = tempfile::tempdir().unwrap();
    let n = 50_000;
    let held = values(9, 0, Kind::Weight, 0..n);
    let dir = prepare(run.path(), 1).unwrap();
    let slice = Slice { param: "wte", global_shape: &[n], start: 0, end: n };
    let slice = SliceValues { slice, values: Stored::of(&KINDS, |_| &held[..]) };
    let files = vec![write_rank_file(&dir, 0, 1, 1, &[slice]).unwrap()];
    let (params, digest_block) =
        (vec![Param::whole("wte", &[n], true)], manifest::digest_block(n, KINDS.len()));
    let dir =
        commit(run.path(), &Manifest { step: 1, psi: n, params, files, digest_block, ..Manifest::default() })
            .unwrap();
    for rank in 0..7 {
        let mut reader = Reader::open(&dir).unwrap();
        let range = shard_range(n, 7, rank);
        reader.read("wte", Kind::Weight, range.clone(), &mut vec![0.0; range.len()]).unwrap();
        assert!(
            reader.bytes_read() <= 4 * (range.len() + 2 * (digest_block - 1)) as u64,
            "{}",
            reader.bytes_read()
        );
    }
}
