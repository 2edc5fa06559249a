//! Any bytes as a manifest, as they are and with a digest that fits them: refused, or a manifest whose every
//! claim holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;
use zero3::checkpoint::Manifest;
use zero3::checkpoint::slice_map::ranges;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if let Some(at) = bytes.windows(8).rposition(|w| w == b"\"digest\"") {
        let mut sealed = bytes[..at].to_vec();
        let digest = xxh3_64(&sealed);
        sealed.extend_from_slice(format!("\"digest\": \"{digest:016x}\"\n}}\n").as_bytes());
        check(&sealed);
    }
});

fn check(bytes: &[u8]) {
    let Ok(manifest) = Manifest::from_bytes(bytes) else { return };
    let placed = manifest.placed();
    for param in &manifest.params {
        let mut at = 0;
        for part in ranges(&placed[param.name.as_str()], 0..param.numel) {
            let slice = &manifest.files[part.file_idx].slices[part.slice_idx];
            assert!(slice.param == param.name && part.file_range.end <= slice.numel());
            assert_eq!(part.out_range.start, at, "elements in order, each once");
            at = part.out_range.end;
        }
        assert_eq!(at, param.numel, "all elements of {}", param.name);
    }
    for file in &manifest.files {
        let Some(structure) = &file.structure else { continue };
        assert!(structure.ranges(file.bytes).iter().all(|range| range.end <= file.bytes));
    }
    let again = manifest.to_bytes().expect("what was read can be written");
    assert!(Manifest::from_bytes(&again).expect("and read again") == manifest);
}
