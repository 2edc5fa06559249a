//! docs/architecture.md against the tree: every module has a layer, files import from their own layer or lower ones, and what is
//! named is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../docs/architecture.md");
const LIB: &str = include_str!("../src/lib.rs");

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every Rust file under src, as a path from there.
fn files() -> Vec<String> {
    let (mut files, mut dirs) = (Vec::new(), vec![src()]);
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            match path.extension() {
                None => dirs.push(path),
                Some(ending) if ending == "rs" => {
                    files.push(path.strip_prefix(src()).unwrap().to_str().unwrap().to_owned());
                }
                Some(_) => {}
            }
        }
    }
    files.sort();
    files
}

/// The module at the root that a file belongs to.
fn module(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// What stands between backticks in a line.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The layer of each module: rows `| L1 | modules | what they know |`, where brackets hold no modules.
fn layers(text: &str) -> BTreeMap<String, usize> {
    let mut layers = BTreeMap::new();
    for line in text.lines() {
        let Some((layer, row)) =
            line.trim_start_matches("//! ").strip_prefix("| L").and_then(|row| row.split_once(" | "))
        else {
            continue;
        };
        let modules = row.split('|').next().unwrap().split('(').map(|part| part.rsplit(')').next().unwrap());
        for name in modules.flat_map(code) {
            let before = layers.insert(name.trim_end_matches('/').to_owned(), layer.parse().unwrap());
            assert_eq!(before, None, "{name} stands in two layers");
        }
    }
    layers
}

/// Modules at the root that a line of code names: `crate::a::b`, `crate::{a, b}`.
fn named(line: &str) -> BTreeSet<&str> {
    let word = |text: &'_ str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = BTreeSet::new();
    for (at, head) in line.match_indices("crate::") {
        let rest = &line[at + head.len()..];
        // `$crate`, and the end of another word.
        if line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group.split(',').map(|part| part.trim()).map(|part| &part[..word(part)])),
            None => _ = found.insert(&rest[..word(rest)]),
        }
    }
    found.remove("");
    found
}

#[test]
fn every_module_has_one_layer_and_both_tables_say_the_same() {
    let page = layers(PAGE);
    let modules: BTreeSet<String> = files().iter().map(|file| module(file).to_owned()).collect();
    assert_eq!(page.keys().cloned().collect::<BTreeSet<_>>(), modules, "the page, the tree");
    let mut lib: BTreeMap<String, usize> =
        layers(LIB).into_iter().map(|(name, layer)| (name.trim_matches(['[', ']']).to_owned(), layer)).collect();
    // The crate's own page does not list itself.
    lib.insert("lib".into(), page["lib"]);
    assert_eq!(lib, page, "src/lib.rs, the page");
}

#[test]
fn a_file_imports_from_its_own_layer_or_lower_ones() {
    let layers = layers(PAGE);
    let (mut n_imports, mut faults) = (0, Vec::new());
    for file in files() {
        let own = module(&file);
        let text = fs::read_to_string(src().join(&file)).unwrap();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for other in named(line) {
                n_imports += 1;
                let Some(&layer) = layers.get(other) else {
                    faults.push(format!("src/{file}:{}: crate::{other} is no module of the table", i + 1));
                    continue;
                };
                let apart = [own, other].iter().all(|name| ["model", "zero"].contains(name)) && own != other;
                if layer > layers[own] || apart {
                    faults.push(format!("src/{file}:{}: {own} (L{}) imports {other} (L{layer})", i + 1, layers[own]));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(n_imports > 500, "{n_imports} imports found: they are written in a way that this test does not read");
}

#[test]
fn imports_are_found_however_they_are_written() {
    let found = |line| named(line).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::error::{Error, Result};"), ["error"]);
    assert_eq!(found("    let a = crate::plan::x(crate::data::Y);"), ["data", "plan"]);
    assert_eq!(found("use crate::{zero, model::Dims};"), ["model", "zero"]);
    assert_eq!(found("use super::plan; pub(crate) fn f() {}"), [""; 0]);
}

#[test]
fn every_file_that_the_page_names_is_there() {
    let files = files();
    let mut n_named = 0;
    for name in PAGE.lines().flat_map(code).filter(|name| name.ends_with(".rs")) {
        n_named += 1;
        let is_it = |file: &String| file == name || file.ends_with(&format!("/{name}"));
        let is_there = src().parent().unwrap().join(name).exists() || files.iter().any(is_it);
        assert!(is_there, "docs/architecture.md names {name}");
    }
    assert!(n_named > 30, "{n_named} files named");
}

#[test]
fn unsafe_code_stands_where_the_page_says() {
    let list = PAGE.split("- `unsafe` stands in").nth(1).expect("the page lists the places");
    for file in files() {
        let text = fs::read_to_string(src().join(&file)).unwrap();
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_unsafe =
            lines.any(|line| ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|words| line.contains(words)));
        let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
        let is_listed = code(&list.replace('\n', " ")).any(|name| name == file || dir.starts_with(name));
        assert!(!is_unsafe || is_listed, "src/{file} has unsafe code, and docs/architecture.md does not list it");
    }
}

/// What deals with files in ways that `files.rs` has once for all.
const FILE_CALLS: [&str; 14] = [
    "fs::rename(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions",
    "fs::write(",
    "fs::copy(",
    ".sync_all(",
    ".sync_data(",
    "fs::symlink(",
    "NamedTempFile",
    "File::open(",
    "fs::read(",
    "fs::read_to_string(",
];

/// Where else they are right: file, call, reason. What /proc and /sys say needs no entry.
const FILE_CALLS_ELSEWHERE: [(&str, &str, &str); 7] = [
    ("accept/storage.rs", ".sync_all(", "measures what the file system does"),
    ("accept/storage.rs", "fs::rename(", "measures what the file system does"),
    (
        "telemetry/step_log.rs",
        ".sync_data(",
        "rows are added to an open file, and reach the disk before a checkpoint does",
    ),
    (
        "text/token_files.rs",
        ".sync_data(",
        "tokens are added to an open file, and reach the disk before the state does",
    ),
    ("train/node_memory.rs", "fs::read_to_string(", "the limits of a control group, under /sys"),
    ("accept/inventory.rs", "fs::read_to_string(", "what /proc and /sys say of the node"),
    ("test_hooks.rs", "fs::write(", "a list that a test asks for, at a path that it gives"),
];

/// Lines of a file that are neither comments nor its tests.
fn lines_of_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a line holds the call, and not the end of a longer name.
fn calls(line: &str, call: &str) -> bool {
    let is_part_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut places = line.match_indices(call);
    places.any(|(at, _)| !call.starts_with(is_part_of_a_name) || !line[..at].ends_with(is_part_of_a_name))
}

#[test]
fn there_is_one_way_to_deal_with_files() {
    let is_of_tests =
        |file: &str| file.contains("/tests/") || file.ends_with("tests.rs") || file.ends_with("test_support.rs");
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for file in files().iter().filter(|file| *file != "files.rs" && !is_of_tests(file)) {
        let text = fs::read_to_string(src().join(file)).unwrap();
        for (i, line) in lines_of_code(&text) {
            for call in FILE_CALLS.into_iter().filter(|call| calls(line, call)) {
                let is_of_system = ["\"/proc/", "\"/sys/"].iter().any(|dir| line.contains(dir));
                match FILE_CALLS_ELSEWHERE.iter().position(|(name, allowed, _)| name == file && *allowed == call) {
                    Some(entry) => _ = used.insert(entry),
                    None if is_of_system => {}
                    None => faults.push(format!("src/{file}:{}: {call} is for src/files.rs", i + 1)),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(used.len(), FILE_CALLS_ELSEWHERE.len(), "an exception that nothing needs: {used:?}");
}
