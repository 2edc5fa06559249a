//! Random damage, bounded: whatever the bytes, an error or the right data, and never a panic or a giant
//! allocation.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::sync::OnceLock;

use super::damage::{checkpoint, read_all_ways, seal};
use super::*;

/// A good manifest's bytes, made once.
fn good_manifest() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| fs::read(checkpoint().1.join(MANIFEST_FILE)).unwrap())
}

/// One edit of a file: bytes overwritten, put in, or taken out.
#[derive(Debug, Clone)]
enum Edit {
    Overwrite(Vec<u8>),
    Insert(Vec<u8>),
    Remove(usize),
    Truncate,
}

fn edit() -> impl Strategy<Value = (prop::sample::Index, Edit)> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..24);
    let edit = prop_oneof![
        4 => bytes().prop_map(Edit::Overwrite),
        1 => bytes().prop_map(Edit::Insert),
        1 => (1usize..64).prop_map(Edit::Remove),
        1 => Just(Edit::Truncate),
    ];
    (any::<prop::sample::Index>(), edit)
}

fn apply(bytes: &mut Vec<u8>, at: usize, edit: &Edit) {
    match edit {
        Edit::Overwrite(new) => {
            let n = new.len().min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&new[..n]);
        }
        Edit::Insert(new) => drop(bytes.splice(at..at, new.iter().copied())),
        Edit::Remove(n) => drop(bytes.drain(at..bytes.len().min(at + n))),
        Edit::Truncate => bytes.truncate(at),
    }
}

/// A JSON value that nobody expects where it will stand.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|b| json!(b)),
        any::<u64>().prop_map(|n| json!(n)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        (0u64..600).prop_map(|n| json!(n)),
        ".{0,12}".prop_map(|s| json!(s)),
        Just(json!([])),
        Just(json!({})),
        Just(json!([u64::MAX, u64::MAX])),
    ]
}

/// Every place of a JSON document, as pointers.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    found.push(at.clone());
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, v)| places(v, format!("{at}/{name}"), found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| places(v, format!("{at}/{i}"), found))
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn edited_manifest_bytes_are_refused(edits in prop::collection::vec(edit(), 1..4)) {
        let mut bytes = good_manifest().to_vec();
        for (at, edit) in &edits {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                apply(&mut bytes, at, edit);
            }
        }
        // Edits can undo themselves; anything else the digest sees.
        prop_assert!(bytes == good_manifest() || Manifest::from_bytes(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Manifest::from_bytes(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The digest is right, the content is not: what is accepted reads as the right data or as an error.
    #[test]
    fn a_sealed_manifest_with_an_odd_value_is_refused_or_harmless(
        place in any::<prop::sample::Index>(), odd in odd_value(),
    ) {
        let (_run, dir, _) = checkpoint();
        seal(&dir, |json| {
            let mut found = Vec::new();
            places(json, String::new(), &mut found);
            found.remove(0); // the document itself
            let place = &found[place.index(found.len())];
            *json.pointer_mut(place).expect("a place of this document") = odd;
        });
        match read_all_ways(&dir) {
            Ok(()) | Err(Error::Checkpoint(_)) => {}
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }

    /// The structure of a rank file, its values spared: its digest sees it before the HDF5 library does.
    /// Without one (files of programs that recorded none) the library itself has to notice, or our checks of
    /// what it says.
    #[test]
    fn an_edited_rank_file_header_is_an_error(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..9)),
            1..4,
        ),
    ) {
        let (_run, dir, path) = checkpoint();
        let mut bytes = fs::read(&path).unwrap();
        let values: Vec<Range<usize>> = {
            let file = h5::open(&path).unwrap();
            let manifest = find::read_manifest(&dir).unwrap();
            let slices = manifest.files[1].slices.iter().filter(|s| s.numel() > 0);
            slices
                .flat_map(|s| KINDS.map(|kind| (format!("{kind}/{}", s.param), s.numel())))
                .map(|(name, numel)| {
                    let start = file.dataset(&name).unwrap().offset().unwrap() as usize;
                    start..start + 4 * numel
                })
                .collect()
        };
        let structure: Vec<usize> =
            (0..bytes.len()).filter(|at| !values.iter().any(|v| v.contains(at))).collect();
        for (place, new) in &edits {
            let at = structure[place.index(structure.len())];
            let n = new.len().min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&new[..n]);
        }
        let is_changed = bytes != fs::read(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        match read_all_ways(&dir) {
            Ok(()) => prop_assert!(!is_changed),
            Err(Error::Checkpoint(why)) => {
                prop_assert!(why.contains("structure does not match its digest"), "{}", why)
            }
            Err(other) => prop_assert!(false, "{other:?}"),
        }
        seal(&dir, |m| drop(m["files"][1].as_object_mut().unwrap().remove("structure")));
        match read_all_ways(&dir) {
            Ok(()) => {}
            Err(Error::Checkpoint(why)) => prop_assert!(why.contains("rank_0001_of_0002.h5"), "{}", why),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
