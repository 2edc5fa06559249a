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

/// The code of a file, without comments and tests.
fn code_of(file: &str) -> String {
    let text = fs::read_to_string(src().join(file)).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// What there is one way to do, and the file that does it: a second way would have other limits, words and tests.
const ONE_WAY: [(&str, &[&str], &[&str]); 6] = [
    ("the calendar", &["SystemTime::now", "UNIX_EPOCH.elapsed", "Timestamp::now", "Zoned::now"], &["clock.rs"]),
    ("a rest", &["thread::sleep"], &["clock.rs"]),
    ("a thread", &["thread::spawn", "thread::Builder", "build_global"], &["threads.rs"]),
    ("a variable of the environment", &["env::var"], &["environment.rs"]),
    ("the processors of this process", &["available_parallelism", "sched_getaffinity", "cpu_set_t"], &["limits.rs"]),
    ("the bounds of a control group", &["/sys/fs/cgroup"], &["limits.rs"]),
];

#[test]
fn there_is_one_way_to_tell_time_to_wait_to_start_a_thread_and_to_read_the_environment() {
    let mut faults = Vec::new();
    for file in files().iter().filter(|file| !file.ends_with("tests.rs") && !file.contains("/tests/")) {
        let code = code_of(file);
        for (what, words, places) in ONE_WAY {
            let found = words.iter().filter(|_| !places.contains(&file.as_str())).find(|word| code.contains(**word));
            faults.extend(found.map(|word| format!("src/{file}: `{word}`: {what} comes from {}", places.join(", "))));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (what, words, places) in ONE_WAY {
        assert!(places.iter().any(|file| words.iter().any(|word| code_of(file).contains(word))), "{what} has no place");
    }
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
