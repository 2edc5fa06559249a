//! docs/architecture.md against the tree: every module has a layer, files import from their own layer or
//! lower ones, and what is named is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../docs/architecture.md");
const LIB: &str = include_str!("../src/lib.rs");

/// Cargo says where the package is; a compiler by itself only when the test runs.
fn src() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").or(option_env!("CARGO_MANIFEST_DIR").map(Into::into));
    Path::new(&package.expect("CARGO_MANIFEST_DIR is set")).join("src")
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
    let word =
        |text: &'_ str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = BTreeSet::new();
    for (at, head) in line.match_indices("crate::") {
        let rest = &line[at + head.len()..];
        // `$crate`, and the end of another word.
        if line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        match rest.strip_prefix('{') {
            Some(group) => {
                found.extend(group.split(',').map(|part| part.trim()).map(|part| &part[..word(part)]))
            }
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
    let mut lib: BTreeMap<String, usize> = layers(LIB)
        .into_iter()
        .map(|(name, layer)| (name.trim_matches(['[', ']']).to_owned(), layer))
        .collect();
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
                    faults.push(format!(
                        "src/{file}:{}: {own} (L{}) imports {other} (L{layer})",
                        i + 1,
                        layers[own]
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        n_imports > 500,
        "{n_imports} imports found: they are written in a way that this test does not read"
    );
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
    let package = src().parent().unwrap().to_owned();
    let kinds = [".rs", ".cu", ".cuh", ".hpp", ".py", ".md", ".sh", ".toml", "/"];
    let is_path = |name: &&str| {
        let kind = kinds.iter().any(|kind| name.ends_with(kind));
        // Files of a run, and `#`, `(` and blanks of code.
        kind && !name.starts_with("RUN/") && !name.contains(['#', '(', ' ', '='])
    };
    let mut n_named = 0;
    for name in PAGE.lines().flat_map(code).filter(is_path) {
        n_named += 1;
        let is_it = |file: &String| {
            file == name
                || file.ends_with(&format!("/{name}"))
                || name.ends_with('/') && file.contains(&format!("/{name}"))
        };
        let is_in = |dir: &str| package.join(dir).join(name).exists();
        let is_there = files.iter().any(is_it)
            || ["", "src", "src/backend", "src/backend/cuda/kernels"].into_iter().any(is_in);
        assert!(is_there, "docs/architecture.md names {name}");
    }
    assert!(n_named > 100, "{n_named} files and directories named");
}

/// The recipes for a kernel, a family, an optimizer and a backend.
fn recipes() -> Vec<&'static str> {
    let section = PAGE.split("## How to add a kernel, a family, an optimizer, a backend").nth(1);
    let section = section.expect("the page says how to add what").split("\n## ").next().unwrap();
    section.split("\n### ").skip(1).collect()
}

#[test]
fn every_type_and_constant_of_a_recipe_is_in_the_sources() {
    let headings: Vec<&str> = recipes().iter().map(|recipe| recipe.lines().next().unwrap()).collect();
    assert_eq!(headings, ["A kernel", "A family", "An optimizer", "A backend"]);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let text = |file: &String| fs::read_to_string(src().join(file)).unwrap();
    let texts: Vec<String> = files().iter().map(|file| without_comments_and_strings(&text(file))).collect();
    let words: BTreeSet<&str> = texts.iter().flat_map(|text| text.split(|c| !is_word(c))).collect();
    for recipe in recipes() {
        let joined = recipe.replace('\n', " ");
        let names: Vec<&str> = code(&joined)
            .map(|name| name.trim_start_matches("trait "))
            .filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(is_word))
            .collect();
        assert!(!names.is_empty(), "{joined}");
        let missing: Vec<&&str> = names.iter().filter(|name| !words.contains(**name)).collect();
        assert!(missing.is_empty(), "docs/architecture.md names {missing:?}, which no source has");
    }
}

/// The files under src that are not tests.
fn program_files() -> Vec<String> {
    let is_of_tests = |file: &str| {
        file.contains("/tests/") || file.ends_with("tests.rs") || file.ends_with("test_support.rs")
    };
    files().into_iter().filter(|file| !is_of_tests(file)).collect()
}

/// Lines of code of a file under src, each with its number: without comments and the tests at its end.
fn code_lines(file: &str) -> Vec<(usize, String)> {
    let text = fs::read_to_string(src().join(file)).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines().enumerate();
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(i, line)| (i + 1, line.to_owned()))
        .collect()
}

/// What there is one way to do, and the file that does it: a second way would have other limits, words and
/// tests.
const ONE_WAY: [(&str, &[&str], &[&str]); 6] = [
    (
        "the calendar",
        &["SystemTime::now", "UNIX_EPOCH.elapsed", "Timestamp::now", "Zoned::now"],
        &["clock.rs"],
    ),
    ("a rest", &["thread::sleep"], &["clock.rs"]),
    ("a thread", &["thread::spawn", "thread::Builder", "build_global"], &["threads.rs"]),
    ("a variable of the environment", &["env::var"], &["environment.rs"]),
    (
        "the processors of this process",
        &["available_parallelism", "sched_getaffinity", "cpu_set_t"],
        &["limits.rs"],
    ),
    ("the bounds of a control group", &["/sys/fs/cgroup"], &["limits.rs"]),
];

#[test]
fn there_is_one_way_to_tell_time_to_wait_to_start_a_thread_and_to_read_the_environment() {
    let mut faults = Vec::new();
    let has = |lines: &[(usize, String)], word: &str| lines.iter().any(|(_, line)| line.contains(word));
    for file in program_files() {
        let lines = code_lines(&file);
        for (what, words, places) in ONE_WAY {
            let found =
                words.iter().filter(|_| !places.contains(&file.as_str())).find(|word| has(&lines, word));
            faults.extend(
                found.map(|word| format!("src/{file}: `{word}`: {what} comes from {}", places.join(", "))),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (what, words, places) in ONE_WAY {
        assert!(
            places.iter().any(|file| words.iter().any(|word| has(&code_lines(file), word))),
            "{what} has no place"
        );
    }
}

#[test]
fn unsafe_code_stands_where_the_page_says() {
    let list = PAGE.split("- `unsafe` stands in").nth(1).expect("the page lists the places");
    for file in files() {
        let text = fs::read_to_string(src().join(&file)).unwrap();
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_unsafe = lines
            .any(|line| ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|words| line.contains(words)));
        let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
        let is_listed = code(&list.replace('\n', " ")).any(|name| name == file || dir.starts_with(name));
        assert!(
            !is_unsafe || is_listed,
            "src/{file} has unsafe code, and docs/architecture.md does not list it"
        );
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
const FILE_CALLS_ELSEWHERE: [(&str, &str, &str); 10] = [
    ("accept/benchmarks/storage.rs", ".sync_all(", "measures what the file system does"),
    ("accept/benchmarks/storage.rs", "fs::rename(", "measures what the file system does"),
    (
        "records/step_log.rs",
        ".sync_data(",
        "rows are added to an open file, and reach the disk before a checkpoint does",
    ),
    (
        "text/token_files.rs",
        ".sync_data(",
        "tokens are added to an open file, and reach the disk before the state does",
    ),
    ("train/node_memory.rs", "fs::read_to_string(", "the limits of a control group, under /sys"),
    ("environment.rs", "fs::read(", "what /proc says of the processes of this user"),
    ("limits.rs", "fs::read_to_string(", "the limits of a control group, under /sys"),
    ("liveness/start_watch.rs", "fs::read_to_string(", "what /proc says of a rank's threads"),
    ("accept/benchmarks/inventory.rs", "fs::read_to_string(", "what /proc and /sys say of the node"),
    ("test_hooks.rs", "fs::write(", "a list that a test asks for, at a path that it gives"),
];

/// Whether a line holds the call, and not the end of a longer name.
fn calls(line: &str, call: &str) -> bool {
    let is_part_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut places = line.match_indices(call);
    places.any(|(at, _)| !call.starts_with(is_part_of_a_name) || !line[..at].ends_with(is_part_of_a_name))
}

#[test]
fn there_is_one_way_to_deal_with_files() {
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for file in program_files().iter().filter(|file| *file != "files.rs") {
        for (number, line) in code_lines(file) {
            for call in FILE_CALLS.into_iter().filter(|call| calls(&line, call)) {
                let is_of_system = ["\"/proc/", "\"/sys/"].iter().any(|dir| line.contains(dir));
                match FILE_CALLS_ELSEWHERE
                    .iter()
                    .position(|(name, allowed, _)| name == file && *allowed == call)
                {
                    Some(entry) => _ = used.insert(entry),
                    None if is_of_system => {}
                    None => faults.push(format!("src/{file}:{number}: {call} is for src/files.rs")),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(used.len(), FILE_CALLS_ELSEWHERE.len(), "an exception that nothing needs: {used:?}");
}

/// No line but those of `allowed` files has one of these words.
fn refuse(words: &[&str], allowed: &[&str], instead: &str) {
    let mut found = Vec::new();
    for file in program_files().iter().filter(|file| !allowed.contains(&file.as_str())) {
        let lines =
            code_lines(file).into_iter().filter(|(_, line)| words.iter().any(|word| line.contains(word)));
        found.extend(lines.map(|(number, line)| format!("src/{file}:{number}: {}", line.trim())));
    }
    assert!(found.is_empty(), "{instead}:\n{}", found.join("\n"));
}

#[test]
fn what_is_said_goes_one_way_that_escapes_what_others_wrote() {
    let ways = ["println!(", "print!(", "stdout().lock()", "stderr().lock()", "stderr(),", "stdout(),"];
    // A bar that redraws itself moves the cursor.
    refuse(&ways, &["say.rs", "records/progress.rs"], "say is the way to standard output and error");
    refuse(
        &["<!doctype html", "&lt;"],
        &["figures/html.rs", "foreign/magic.rs"],
        "figures::html begins pages and escapes text",
    );
}

#[test]
fn parsers_that_may_panic_are_called_where_they_are_guarded() {
    for (parser, file) in [
        ("tokenizers::", "text/byte_pairs.rs"),
        ("tiktoken_rs::", "text/byte_pairs.rs"),
        ("glob::", "data/globs.rs"),
    ] {
        refuse(&[parser], &[file], &format!("{file} calls that crate"));
    }
    refuse(
        &["catch_unwind"],
        &["foreign/guard.rs", "cli/mod.rs"],
        "foreign::guarded turns panics of parsers into errors",
    );
}

// ---- Imports between files ----

/// A file of the library: its module, its code, and the names that its `use` lines bring in.
struct Source {
    module: Vec<String>,
    /// Without comments, strings, tests and `use` lines.
    code: String,
    uses: Vec<Use>,
}

/// One name that a `use` line brings in.
struct Use {
    /// As written, from `crate`, `self`, `super`, a module or a crate.
    path: Vec<String>,
    /// The last word of the path, or what follows `as`; `*` where all names are brought in.
    name: String,
    /// Brought in for others, too.
    is_public: bool,
}

/// Code without comments and without what stands in strings.
fn without_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let skip_to =
        |from: usize, end: &str| text[from..].find(end).map_or(bytes.len(), |at| from + at + end.len());
    while i < bytes.len() {
        let rest = &text.as_bytes()[i..];
        if rest.starts_with(b"//") {
            i = text[i..].find('\n').map_or(bytes.len(), |at| i + at);
        } else if rest.starts_with(b"/*") {
            i = skip_to(i + 2, "*/");
        } else if rest[0] == b'r' && (i == 0 || !is_word(bytes[i - 1])) && {
            let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
            rest.get(1 + hashes) == Some(&b'"')
        } {
            let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
            i = skip_to(i + hashes + 2, &format!("\"{}", "#".repeat(hashes)));
            out.extend(b"\"\"");
        } else if rest[0] == b'"' {
            i += 1;
            while i < bytes.len() && bytes[i] != b'"' {
                i += 1 + usize::from(bytes[i] == b'\\');
            }
            i += 1;
            out.extend(b"\"\"");
        } else if rest[0] == b'\'' && rest.get(1) == Some(&b'\\') {
            i = skip_to(i + 3, "'");
        } else if rest[0] == b'\'' && rest.get(2) == Some(&b'\'') {
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8(out).expect("whole characters are dropped")
}

/// The paths of `a::{b, c::{self, d as e}}`, and what each is called.
fn paths(tree: &str, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    if tree.is_empty() {
        return;
    }
    let open = tree.find('{');
    if let Some(open) = open {
        let mut path = before.to_vec();
        path.extend(
            tree[..open]
                .trim_end_matches("::")
                .split("::")
                .map(str::trim)
                .filter(|s| !s.is_empty())
                .map(String::from),
        );
        let inner = &tree[open + 1..tree.rfind('}').expect("braces are closed")];
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    paths(&inner[start..at], &path, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return paths(&inner[start..], &path, found);
    }
    let (tree, alias) =
        tree.split_once(" as ").map_or((tree, None), |(tree, alias)| (tree, Some(alias.trim())));
    let mut path = before.to_vec();
    path.extend(tree.split("::").map(str::trim).filter(|s| !s.is_empty()).map(String::from));
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
    found.push((path, name));
}

/// serde refuses a path that is not UTF-8, and neither a message between ranks nor JSON may fail for one.
#[test]
fn a_serialized_path_says_what_becomes_of_bytes_that_are_not_utf_8() {
    let mut n_fields = 0;
    for file in program_files() {
        let (mut is_serialized, mut has_way) = (false, false);
        for (number, line) in code_lines(&file) {
            let line = line.trim();
            match line {
                _ if line.starts_with("#[derive(") => is_serialized = line.contains("erialize"),
                "}" => is_serialized = false,
                _ if line.starts_with("#[serde(") && line.contains("foreign::paths::") => has_way = true,
                _ if line.starts_with("#[") => {}
                _ => {
                    let is_field = is_serialized && line.contains(": ") && line.contains("Path");
                    n_fields += usize::from(is_field);
                    assert!(!is_field || has_way, "src/{file}:{number}: {line} (see foreign/paths.rs)");
                    has_way = false;
                }
            }
        }
    }
    assert!(n_fields >= 6, "{n_fields} fields found: they are written in a way that this test does not read");
}

/// Every file but tests.
fn sources() -> BTreeMap<String, Source> {
    let mut of_tests = BTreeSet::new();
    let mut sources = BTreeMap::new();
    for file in files().into_iter().filter(|file| file != "main.rs") {
        let text = without_comments_and_strings(&fs::read_to_string(src().join(&file)).unwrap());
        let mut module: Vec<String> = file.trim_end_matches(".rs").split('/').map(String::from).collect();
        if ["mod", "lib"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        // Modules of tests in files of their own; those in this file close it.
        for part in text.split("#[cfg(test)]").skip(1) {
            let line = part.trim_start().lines().next().unwrap_or_default();
            if let Some(name) = line.trim_end().strip_suffix(';').and_then(|line| line.split("mod ").nth(1)) {
                of_tests.insert([&module[..], &[name.to_owned()]].concat());
            }
        }
        let closes_with_tests = |at: &usize| {
            let line = text[*at..].lines().nth(1).unwrap_or_default();
            line.contains("mod ") && line.ends_with('{')
        };
        let tests = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(closes_with_tests);
        let end = tests.unwrap_or(text.len());
        let (mut code, mut uses, mut rest) = (String::new(), Vec::new(), &text[..end]);
        // A `use` stands at the beginning of a line, after a visibility.
        while let Some(at) = rest.match_indices("use ").map(|(at, _)| at).find(|&at| {
            let before = rest[..at].rsplit('\n').next().unwrap().trim();
            before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')')
        }) {
            let line = rest[..at].rfind('\n').map_or(0, |end| end + 1);
            let end = at + rest[at..].find(';').expect("a use ends");
            let is_public = rest[line..at].trim().starts_with("pub");
            let mut found = Vec::new();
            paths(&rest[at + "use ".len()..end], &[], &mut found);
            uses.extend(found.into_iter().map(|(path, name)| Use { path, name, is_public }));
            code.push_str(&rest[..line]);
            rest = &rest[end + 1..];
        }
        code.push_str(rest);
        sources.insert(file, Source { module, code, uses });
    }
    sources.retain(|_, source| !of_tests.contains(&source.module));
    sources
}

/// The files, by module.
struct Tree<'a> {
    sources: &'a BTreeMap<String, Source>,
    file_of: BTreeMap<&'a [String], &'a str>,
}

impl<'a> Tree<'a> {
    fn new(sources: &'a BTreeMap<String, Source>) -> Self {
        let file_of = sources.iter().map(|(file, source)| (&source.module[..], file.as_str())).collect();
        Tree { sources, file_of }
    }

    fn source(&self, module: &[String]) -> Option<&'a Source> {
        self.file_of.get(module).map(|file| &self.sources[*file])
    }

    /// The file in which the item of a path lies that is written in `module`; None for a module, or of
    /// another crate. Names that a module brings in from another one lead there.
    fn file(&self, module: &[String], path: &[String], depth: usize) -> Option<&'a str> {
        assert!(depth < 20, "{path:?} in {module:?} leads in a circle");
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.to_vec(), &path[1..]),
            "super" => {
                let n = path.iter().take_while(|word| *word == "super").count();
                (module[..module.len().checked_sub(n)?].to_vec(), &path[n..])
            }
            first => {
                let child = [module, &[first.to_owned()]].concat();
                let is_known = self.file_of.contains_key(&child[..])
                    || self.source(module)?.uses.iter().any(|brought| brought.name == first);
                if !is_known {
                    return None;
                }
                (module.to_vec(), path)
            }
        };
        loop {
            let source = self.source(&at)?;
            let here = self.file_of[&at[..]];
            let name = rest.first()?;
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.file_of.contains_key(&child[..]) {
                (at, rest) = (child, &rest[1..]);
                continue;
            }
            if name == "*" {
                return Some(here);
            }
            let brought = source.uses.iter().find(|brought| brought.name == *name && brought.path.len() > 1);
            if let Some(brought) = brought {
                // `use smallvec::smallvec`.
                if brought.path[0] == brought.name {
                    return None;
                }
                let path = [&brought.path[..], &rest[1..]].concat();
                // What another crate has is no file of this one.
                return self.file(&at, &path, depth + 1);
            }
            let globs = source.uses.iter().filter(|brought| brought.name == "*" && brought.is_public);
            for glob in globs {
                let mut path = glob.path.clone();
                path.pop();
                path.extend(rest.iter().cloned());
                let file = self.file(&at, &path, depth + 1);
                let has_it = |file: &&str| self.sources[*file].code.contains(&format!(" {name}"));
                if let Some(file) = file.filter(has_it) {
                    return Some(file);
                }
            }
            return Some(here);
        }
    }

    /// The files that a file needs, by the paths in its code and its `use` lines. A name that is only passed
    /// on is not needed.
    fn imports(&self, file: &str) -> BTreeSet<&'a str> {
        let source = &self.sources[file];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let words: BTreeSet<&str> = source.code.split(|c| !is_word(c)).collect();
        let mut found = BTreeSet::new();
        for brought in source.uses.iter().filter(|b| !b.is_public || words.contains(b.name.as_str())) {
            found.extend(self.file(&source.module, &brought.path, 0));
        }
        for chain in
            source.code.split(|c| !is_word(c) && c != ':' && c != '$').filter(|chain| chain.contains("::"))
        {
            let path: Vec<String> = chain.split("::").map(|word| word.trim_matches(':').to_owned()).collect();
            if !chain.contains('$') && path.iter().all(|word| !word.is_empty()) {
                found.extend(self.file(&source.module, &path, 0));
            }
        }
        found.remove(file);
        found
    }
}

/// Which files each file needs.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources();
    let tree = Tree::new(&sources);
    let owned = |file: &String| tree.imports(file).into_iter().map(String::from).collect();
    sources.keys().map(|file| (file.clone(), owned(file))).collect()
}

/// Sets of files of which each needs all others, two at least.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(imports[file].iter().filter(|other| reached.insert((*other).clone())));
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|file| (file, reached(file))).collect();
    let circle = |file: &String| -> BTreeSet<String> {
        reached[file].iter().filter(|other| reached[other].contains(file)).cloned().collect()
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_files_need_each_other_in_a_circle() {
    let imports = imports();
    let n_imports: usize = imports.values().map(BTreeSet::len).sum();
    assert!(
        n_imports > 1000,
        "{n_imports} imports found: they are written in a way that this test does not read"
    );
    let arrows = |circle: &BTreeSet<String>| -> String {
        let of = |file: &String| {
            let others: Vec<&String> = imports[file].intersection(circle).collect();
            format!("  src/{file} needs {others:?}\n")
        };
        circle.iter().map(of).collect()
    };
    let found: Vec<String> = circles(&imports).iter().map(arrows).collect();
    assert!(found.is_empty(), "files need each other in a circle:\n{}", found.join("\n"));
}

#[test]
fn circles_are_found_through_other_files() {
    let imports = [("a", &["b"][..]), ("b", &["c"]), ("c", &["b", "d"]), ("d", &[])];
    let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
    let imports = imports.map(|(file, others)| (file.to_string(), owned(others))).into();
    assert_eq!(circles(&imports), BTreeSet::from([owned(&["b", "c"])]));
}

/// In `backend/` a `mod.rs` joins what lies below it: no file below needs anything of it.
#[test]
fn no_file_of_the_backends_imports_upward() {
    let imports = imports();
    let arrows = imports.iter().flat_map(|(file, others)| others.iter().map(move |other| (file, other)));
    let is_upward = |(file, other): &(&String, &String)| {
        let above = other.strip_suffix("mod.rs");
        file.starts_with("backend/")
            && above.is_some_and(|dir| file.starts_with(dir) && dir.starts_with("backend/"))
    };
    let upward: Vec<_> = arrows.filter(is_upward).collect();
    assert!(upward.is_empty(), "a file imports from a mod.rs above it: {upward:?}");
}

/// `backend/mpi/` and the traits are under both backends, which know nothing of each other; `kind.rs` joins
/// them.
#[test]
fn neither_the_seam_nor_the_other_backend_names_a_file_of_one_backend() {
    let kind_of =
        |file: &str| ["backend/cpu/", "backend/cuda/"].into_iter().find(|dir| file.starts_with(dir));
    for (file, others) in imports() {
        let joins = ["backend/kind.rs"].contains(&file.as_str());
        let in_seam = file.starts_with("backend/") && !joins;
        for other in others.iter().filter(|_| in_seam) {
            assert!(kind_of(other).is_none_or(|dir| file.starts_with(dir)), "src/{file} names src/{other}");
        }
    }
}

#[test]
fn mpi_is_called_by_its_own_room_and_the_cpu_backend_alone() {
    for file in files()
        .into_iter()
        .filter(|file| !file.starts_with("backend/mpi/") && !file.starts_with("backend/cpu/"))
    {
        let text = without_comments_and_strings(&fs::read_to_string(src().join(&file)).unwrap());
        let names =
            ["use mpi::", "::mpi::ffi", "::mpi::topology", "::mpi::traits", " mpi::ffi", "mpi::initialize"];
        let named = names.into_iter().find(|name| text.contains(name));
        assert_eq!(
            named, None,
            "src/{file} calls MPI; backend/mpi has groups and the start and end of the library"
        );
    }
}

#[test]
fn paths_are_found_however_they_are_written() {
    let found = |tree| {
        let mut found = Vec::new();
        paths(tree, &[], &mut found);
        found.into_iter().map(|(path, name)| format!("{} {name}", path.join("::"))).collect::<Vec<_>>()
    };
    assert_eq!(
        found("crate::a::{self, b as c, d::{E, F}}"),
        ["crate::a a", "crate::a::b c", "crate::a::d::E E", "crate::a::d::F F"]
    );
    assert_eq!(found("super::*"), ["super::* *"]);
    let text = "let s = \"use x;\"; // use y;\nlet c = '\\''; let r = r#\"z\"#; let l: &'a str;";
    assert_eq!(without_comments_and_strings(text), "let s = \"\"; \nlet c = ; let r = \"\"; let l: &'a str;");
}
