//! Claims about decks: defaults, faults, overrides, presets, round trips, and that documents say what the
//! table says.

use super::*;
use crate::error::Fault;
use crate::optimizers::{BYTES_PER_STATE, OptimizerKind};
use proptest::prelude::*;
use std::path::PathBuf;

/// The smallest deck: every key without a default.
const SMALLEST: &str = r#"
[run]
dir = "r"
[model]
n_layer = 2
n_head = 2
d_model = 8
seq_len = 4
[data]
train = ["a.txt"]
[train]
steps = 10
"#;

fn overrides(list: &[&str]) -> Vec<(String, String)> {
    list.iter().map(|o| o.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap()).collect()
}

fn parsed(text: &str, list: &[&str]) -> Deck {
    Deck::parse(text, &overrides(list), "test.toml").unwrap_or_else(|err| panic!("{list:?}: {err}"))
}

fn faults(text: &str, list: &[&str]) -> Vec<Fault> {
    match Deck::parse(text, &overrides(list), "test.toml") {
        Err(Error::Deck(faults)) => faults,
        other => panic!("{list:?}: wanted faults, got {other:?}"),
    }
}

/// The one fault of the smallest deck with one override, as printed.
fn fault_of(list: &[&str]) -> String {
    let faults = faults(SMALLEST, list);
    assert_eq!(faults.len(), 1, "{list:?}: {faults:?}");
    faults[0].to_string()
}

#[test]
fn a_path_that_only_a_shell_understands_is_refused_by_its_key() {
    for path in [
        "run.dir=~/x",
        "run.dir=$SCRATCH/x",
        "run.dir=/a/${JOB}/x",
        "data.train=~/a.txt",
        "model.init_from=$W/a",
    ] {
        let fault = fault_of(&[path]);
        let key = path.split('=').next().unwrap();
        assert!(fault.starts_with(key) && fault.contains("let the shell expand it"), "{fault}");
    }
    for path in ["run.dir=./~x", "run.dir=a$", "run.dir=a$1", "run.dir=a~"] {
        parsed(SMALLEST, &[path]);
    }
}

#[test]
fn structs_hold_exactly_the_keys_of_the_table() {
    let table = toml::Table::try_from(Deck::default()).unwrap();
    let mut in_structs: Vec<String> = table
        .iter()
        .flat_map(|(section, fields)| {
            fields.as_table().unwrap().keys().map(move |field| format!("{section}.{field}"))
        })
        .collect();
    in_structs.sort();
    let mut in_table: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
    in_table.sort_unstable();
    assert_eq!(in_structs, in_table);
}

#[test]
fn every_default_is_a_value_this_release_runs() {
    for key in KEYS {
        if let Origin::Fixed(text) = key.origin {
            assert_eq!(key.complaint(key.kind.read_override(text).as_ref()), None, "{}", key.name);
        }
    }
}

#[test]
fn the_smallest_deck_gets_every_default() {
    let deck = parsed(SMALLEST, &[]);
    assert_eq!(deck.run.dir, "r");
    assert_eq!(deck.run.backend, BackendKind::Auto);
    assert_eq!((deck.model.preset, deck.model.vocab_size), (Preset::None, 256));
    assert_eq!((deck.data.format, deck.data.tokenizer), (DataFormat::Text, Tokenizer::Bytes));
    assert_eq!((deck.data.stride, deck.data.val_stride), (4, 4), "0 stands for model.seq_len");
    assert!(deck.data.val.is_empty() && deck.data.shuffle && !deck.data.allow_changed);
    assert_eq!((deck.train.micro_batch_size, deck.train.global_batch_size), (4, 32));
    assert_eq!((deck.optim.decay_steps, deck.optim.warmup_steps), (10, 100));
    assert_eq!(
        deck.zero,
        ZeroSection {
            stage: 3,
            prefetch_units: 1,
            reduce_bucket_bytes: 32 << 20,
            deterministic: true,
            ..Default::default()
        }
    );
    assert!(deck.zero.overlap && deck.zero.deterministic && deck.zero.release_after_forward);
    assert_eq!((deck.checkpoint.every, deck.log.level.as_str()), (1000, "info"));
}

#[test]
fn gradients_are_added_in_one_order_unless_nccl_may_choose_its_own() {
    assert!(parsed(SMALLEST, &["run.backend=auto"]).zero.deterministic);
    assert!(!parsed(SMALLEST, &["run.backend=cuda"]).zero.deterministic);
    assert!(parsed(SMALLEST, &["run.backend=cuda", "zero.deterministic=true"]).zero.deterministic);
    for backend in ["auto", "cpu"] {
        assert!(
            fault_of(&[&format!("run.backend={backend}"), "zero.deterministic=false"])
                .contains("zero.deterministic")
        );
    }
}

#[test]
fn presets_have_the_published_sizes_and_explicit_keys_beat_them() {
    let deck = "run.dir = 'r'\ndata.train = ['a.bin']\ntrain.steps = 1";
    for (preset, n_layer, n_head, d_model) in [
        ("gpt2-124m", 12, 12, 768),
        ("gpt2-355m", 24, 16, 1024),
        ("gpt2-774m", 36, 20, 1280),
        ("gpt2-1.5b", 48, 25, 1600),
    ] {
        let model = parsed(deck, &[&format!("model.preset={preset}")]).model;
        assert_eq!((model.n_layer, model.n_head, model.d_model), (n_layer, n_head, d_model));
        assert_eq!((model.seq_len, model.vocab_size), (1024, 50257));
    }
    let model =
        parsed(deck, &["model.preset=gpt2-124m", "model.seq_len=256", "model.vocab_size=50304"]).model;
    assert_eq!((model.n_layer, model.seq_len, model.vocab_size), (12, 256, 50304));
    let bytes = parsed(deck, &["model.preset=gpt2-124m", "data.train=a.txt"]);
    assert_eq!((bytes.model.vocab_size, bytes.data.tokenizer), (256, Tokenizer::Bytes));
}

#[test]
fn a_family_brings_what_its_sizes_leave_open() {
    let of = |list: &[&str]| {
        let m = parsed(SMALLEST, list).model;
        (m.family, m.n_kv_head, m.d_ff, m.rope_theta, m.norm_eps, m.tied)
    };
    assert_eq!(of(&[]), (Family::Gpt2, 2, 32, 0.0, 1e-5, true));
    assert_eq!(of(&["model.family=llama"]), (Family::Llama, 2, 256, 10_000.0, 1e-5, false));
    let own = [
        "model.family=llama",
        "model.n_kv_head=1",
        "model.d_ff=20",
        "model.rope_theta=500",
        "model.norm_eps=1e-6",
    ];
    assert_eq!(of(&[&own[..], &["model.tied=true"]].concat()), (Family::Llama, 1, 20, 500.0, 1e-6, true));

    let deck = "run.dir = 'r'\ndata.train = ['a.u32']\ntrain.steps = 1";
    for (preset, sizes, tied) in [
        ("llama-tiny", [4, 8, 4, 128, 384, 128, 256], false),
        ("llama-1b", [16, 32, 8, 2048, 8192, 8192, 128_256], true),
        ("llama3-8b", [32, 32, 8, 4096, 14336, 8192, 128_256], false),
    ] {
        let m = parsed(deck, &[&format!("model.preset={preset}")]).model;
        let found = [m.n_layer, m.n_head, m.n_kv_head, m.d_model, m.d_ff, m.seq_len, m.vocab_size];
        assert_eq!((m.family, found, m.tied), (Family::Llama, sizes, tied), "{preset}");
    }
    // What depends on a size follows it where the preset's was changed.
    let m = parsed(deck, &["model.preset=llama3-8b", "model.d_model=4032", "model.n_head=36"]).model;
    assert_eq!((m.n_kv_head, m.d_ff), (36, 10752));
}

#[test]
fn what_a_family_does_not_have_is_refused_by_name() {
    for (list, says) in [
        (
            &["model.n_kv_head=1"][..],
            "model.n_kv_head = 1: model.n_head = 2, because GPT-2 does not share key/value heads",
        ),
        (&["model.d_ff=20"], "model.d_ff = 20: 4 * model.d_model = 32"),
        (&["model.rope_theta=10000"], "model.rope_theta = 10000: 0, because GPT-2 learns its positions"),
        (&["model.norm_eps=1e-6"], "model.norm_eps = 1e-6: 1e-5"),
        (&["model.tied=false"], "model.tied = false: true, because GPT-2's head is its embedding"),
        (&["model.family=bert"], "one of \"gpt2\", \"llama\""),
        (
            &["model.family=llama", "model.n_head=4", "model.n_kv_head=3"],
            "a divisor of model.n_head = 4, e.g. 2 or 4",
        ),
        (&["model.family=llama", "model.n_head=8"], "an even number of channels"),
        (&["model.family=llama", "model.rope_theta=0"], "above 0, e.g. 10000"),
        (&["model.family=gpt2", "model.preset=llama-tiny"], "\"llama\" with model.preset = \"llama-tiny\""),
        (
            &["model.family=llama", "model.d_ff=4000000", "model.d_model=1048576", "model.n_layer=4096"],
            "at most 2^44 are supported",
        ),
    ] {
        let fault = fault_of(list);
        assert!(fault.contains(says), "{list:?}: {fault}");
    }
}

#[test]
fn format_goes_by_file_name_and_decides_the_tokenizer() {
    for (paths, format, tokenizer) in [
        ("a.txt,src/**/*.rs,README", DataFormat::Text, Tokenizer::Bytes),
        ("data/*.bin,b.u16", DataFormat::RawU16, Tokenizer::None),
        ("c.u32", DataFormat::RawU32, Tokenizer::None),
    ] {
        let deck = parsed(SMALLEST, &[&format!("data.train={paths}"), "model.vocab_size=300"]);
        assert_eq!((deck.data.format, deck.data.tokenizer), (format, tokenizer), "{paths}");
    }
    assert!(fault_of(&["data.train=a.txt,b.bin"]).contains("by name a.txt is text and b.bin is raw_u16"));
    assert!(fault_of(&["data.format=raw_u16"]).contains("model.vocab_size = missing"));
    assert!(
        fault_of(&["data.format=raw_u16", "data.tokenizer=bytes", "model.vocab_size=300"])
            .contains("\"none\"")
    );
    assert!(fault_of(&["data.tokenizer=none", "model.vocab_size=300"]).contains("\"bytes\" for text"));
    assert!(fault_of(&["data.tokenizer=gpt2"]).contains("zero3 data tokenize"));
    assert!(fault_of(&["data.tokenizer=gtp2"]).contains("the path of a tokenizer.json"));
    let small = ["data.format=llmc", "data.tokenizer=gpt2", "model.vocab_size=50256"];
    assert!(fault_of(&small).contains("at least 50257, the vocabulary of data.tokenizer"));
}

#[test]
fn overrides_are_read_by_the_type_of_their_key() {
    let deck = parsed(
        SMALLEST,
        &[
            "run.dir=/tmp/x y",
            "train.steps=1_000",
            "optim.lr=1e-3",
            "optim.beta1=.5",
            "optim.grad_clip=2",
            "zero.overlap=off",
            "data.shuffle=no",
            "data.train=[a-c]*.txt,d.txt",
            "data.val=[\"v,1.txt\", 'v 2.txt']",
            "model.init_from=\"a\\tb\"",
            "model.init_seed=0xff",
            "log.level=info,zero3::data=debug",
            "log.every=7",
            "log.every=0",
        ],
    );
    assert_eq!((deck.run.dir.as_str(), deck.train.steps), ("/tmp/x y", 1000));
    assert_eq!((deck.optim.lr, deck.optim.beta1, deck.optim.grad_clip), (1e-3, 0.5, 2.0));
    assert!(!deck.zero.overlap && !deck.data.shuffle);
    assert_eq!(deck.data.train, ["[a-c]*.txt", "d.txt"]);
    assert_eq!(deck.data.val, ["v,1.txt", "v 2.txt"]);
    assert_eq!((deck.model.init_from.as_str(), deck.model.init_seed), ("a\tb", 255));
    assert_eq!(deck.log.every, 0, "the last override of a key counts");
    assert!(parsed(SMALLEST, &["data.val="]).data.val.is_empty());
}

#[test]
fn an_override_mends_a_faulty_deck() {
    let text = SMALLEST.replace("steps = 10", "steps = 'many'");
    assert_eq!(faults(&text, &[]).len(), 1);
    assert_eq!(parsed(&text, &["train.steps=3"]).train.steps, 3);
}

#[test]
fn integers_are_accepted_where_numbers_are_wanted_but_not_the_other_way_round() {
    assert_eq!(parsed(&format!("{SMALLEST}[optim]\nlr = 1\n"), &[]).optim.lr, 1.0);
    assert!(fault_of(&["train.steps=1e3"]).contains("train.steps = 1e3: an integer from 1"));
    assert!(
        faults(&format!("{SMALLEST}micro_batch_size = 4.0"), &[])[0].to_string().contains("4.0: an integer")
    );
}

#[test]
fn all_faults_are_listed_at_once_each_with_key_value_and_remedy() {
    let text = r#"
steps = 3
run = 7
[modle]
n_layer = 2
[model]
n_layer = 0
n_head = 3
d_model = 8
seq_len = "long"
[data]
train = "a.txt"
[train]
setps = 3
micro_batch_size = 4
global_batch_size = 10
[optim]
beta1 = 1.0
eps = nan
betta2 = 0.9
"#;
    let list = faults(text, &["zero.stage=9", "log.lvl=info"]);
    let printed: Vec<String> = list.iter().map(Fault::to_string).collect();
    assert_eq!(
        printed,
        [
            "steps = 3: no such key; did you mean train.steps?",
            "run = 7: a section, written [run]",
            "[modle] = 1 key: no such section; did you mean [model]?",
            "train.setps = 3: no such key; did you mean train.steps?",
            "optim.betta2 = 0.9: no such key; did you mean optim.beta2?",
            "log.lvl = info: no such key; did you mean log.level?",
            "run.dir = missing: a non-empty string",
            "model.n_layer = 0: an integer from 1 to 4096",
            "model.seq_len = \"long\": an integer from 1 to 1048576",
            "data.train = \"a.txt\": a list of at least one path or glob, e.g. [\"text/*.txt\", \
             \"more.txt\"]",
            "train.steps = missing: an integer from 1 to 1000000000",
            "optim.beta1 = 1.0: a number from 0 to below 1",
            "optim.eps = nan: a number from 0 to 1",
            "zero.stage = 9: an integer from 0 to 3",
            "model.n_head = 3: a divisor of model.d_model = 8, e.g. 2 or 4",
            "train.global_batch_size = 10: a multiple of train.micro_batch_size = 4, e.g. 8 or 12",
        ]
    );
}

#[test]
fn unknown_keys_get_the_nearest_one_or_the_list() {
    for (key, says) in [
        ("lr", "did you mean optim.lr?"),
        ("seed", "did you mean data.seed?"),
        ("every", "did you mean checkpoint.every or log.every?"),
        ("optm.lr", "did you mean optim.lr?"),
        ("train.lr", "did you mean optim.lr?"),
        ("zero.prefech_units", "did you mean zero.prefetch_units?"),
        ("zero.persistance_threshold_bytes", "did you mean zero.persistence_threshold_bytes?"),
        ("train.batch", "[train] has steps, micro_batch_size"),
        ("optim.foo", "[optim] has kind, lr, min_lr"),
        ("train", "a section, not a key; one of its keys is train.steps"),
        ("nonsense", "the sections are run, model, data"),
        ("run.dir.x", "did you mean run.dir?"),
    ] {
        let fault = fault_of(&[&format!("{key}=1")]);
        assert!(fault.contains(says), "{fault}");
    }
}

#[test]
fn inconsistent_values_are_refused() {
    for (list, says) in [
        (&["model.n_head=16"][..], "model.n_head = 16: a divisor of model.d_model = 8, e.g. 8"),
        (&["train.global_batch_size=3"], "e.g. 4"),
        (&["train.global_batch_size=0"], "train.global_batch_size = 0: an integer from 1"),
        (&["train.eval_every=5"], "train.eval_every = 5: validation data"),
        (&["optim.min_lr=1"], "optim.min_lr = 1: at most optim.lr = 0.0003"),
        (&["model.vocab_size=255"], "at least 256"),
        (&["data.val_fraction=1"], "data.val_fraction = 1: a number from 0 to below 1"),
        (&["optim.kind=adam"], "optim.kind = adam: one of \"adamw\", \"lion\", \"sgd\""),
        (&["optim.kind=lion", "optim.eps=1e-6"], "optim.kind = \"lion\" uses only beta1, beta2"),
        (
            &["optim.momentum=0.9"],
            "optim.momentum = 0.9: 0, or unset: optim.kind = \"adamw\" uses only beta1, beta2, eps",
        ),
        (&["optim.nesterov=true"], "false with optim.kind = \"adamw\""),
        (&["optim.kind=sgd", "optim.momentum=0", "optim.nesterov=true"], "optim.momentum above 0"),
        (&["optim.eps=0"], "optim.eps = 0"),
        (&["optim.grad_clip=-0.5"], "optim.grad_clip = -0.5"),
        (&["optim.lr=inf"], "optim.lr = inf"),
        (&["optim.lr=1e999"], "optim.lr = 1e999"),
        (&["optim.lr=fast"], "optim.lr = fast"),
        (&["model.init_seed=18446744073709551616"], "2^63 - 1"),
        (
            &["train.steps=1000000000", "train.global_batch_size=1048576", "model.seq_len=1048576"],
            "train.steps = 1000000000: a number that keeps all tokens",
        ),
        (&["train.steps=-1"], "train.steps = -1"),
        (&["data.train="], "data.train = empty"),
        (&["data.train=a.txt,,b.txt"], "data.train = a.txt,,b.txt"),
        (&["data.train=[\"a.txt\""], "data.train = [\"a.txt\""),
        (&["run.dir="], "run.dir = empty"),
        (&["log.level=inof"], "log.level = inof"),
        (&["log.level=info,zero3=loud"], "log.level = info,zero3=loud"),
        (&["zero.overlap=maybe"], "true or false"),
        (&["zero.reduce_bucket_bytes=100"], "from 4096"),
        (&["model.preset=gpt3"], "model.preset = gpt3: one of \"none\", \"gpt2-124m\""),
    ] {
        let fault = fault_of(list);
        assert!(fault.contains(says), "{list:?}: {fault}");
    }
    parsed(SMALLEST, &["train.eval_every=5", "data.val_fraction=0.1"]);
    parsed(SMALLEST, &["train.eval_every=5", "data.val=v.txt"]);
}

#[test]
fn impossible_values_are_refused_with_what_would_do_and_not_as_not_available_yet() {
    for (list, says) in [
        ("zero.deterministic=false", "run.backend = \"cuda\""),
        ("run.devices=0,x", "device ordinals"),
        ("zero.stage=7", "an integer from 0 to 3"),
        ("zero.param_dtype=f16", "one of \"f32\", \"bf16\""),
        ("zero.activation_checkpointing=every:0", "\"every:K\" with K of at least 1"),
        ("data.format=parquet", "one of \"auto\", \"text\""),
    ] {
        let fault = fault_of(&[list]);
        assert!(fault.contains(says), "{list}: {fault}");
        assert_eq!(
            fault.contains("not available yet"),
            says.contains("not available yet"),
            "{list}: {fault}"
        );
    }
}

#[test]
fn a_syntax_error_names_line_and_column() {
    let Err(Error::Input(message)) = Deck::parse("[run]\ndir = \"r\"\n[train]\nsteps = = 3\n", &[], "a.toml")
    else {
        panic!("accepted")
    };
    assert!(message.starts_with("a.toml is not TOML: line 4, column 9: "), "{message}");
    assert!(message.ends_with("\n  4 | steps = = 3"), "{message}");
    let Err(Error::Input(message)) = Deck::parse("run.dir = \"a\nb\"\n", &[], "a.toml") else {
        panic!("accepted")
    };
    assert!(message.contains("line 1, "), "the first error of several: {message}");
    for text in
        ["[run", "a = \"x", "[run]\n[run]", "a = 1\na = 2", "x = 99999999999999999999999e", "[a]\n\u{0}"]
    {
        let err = Deck::parse(text, &[], "a.toml").unwrap_err();
        assert!(matches!(&err, Error::Input(m) if m.contains("line ")), "{text:?}: {err}");
    }
}

#[test]
fn a_missing_deck_is_an_input_error_with_its_path() {
    let err = Deck::load(Path::new("no/such.toml"), &[]).unwrap_err();
    assert!(err.to_string().starts_with("cannot read the deck no/such.toml: "), "{err}");
    assert_eq!(err.exit(), crate::error::Exit::BadInput);
}

#[test]
fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
    let text = format!("x = {}", "[".repeat(100_000));
    assert!(Deck::parse(&text, &[], "deep").is_err());
    assert!(
        Deck::parse(SMALLEST, &overrides(&[&format!("data.train=[\"a\", {}", "[".repeat(100_000))]), "deep")
            .is_err()
    );
}

#[test]
fn digests_follow_the_meaning_and_not_the_spelling() {
    let deck = parsed(SMALLEST, &[]);
    let spelled =
        parsed(&SMALLEST.replace("steps = 10", "steps = 0xA # ten"), &["optim.lr=0.0003", "zero.stage=3"]);
    assert_eq!(deck.digest(), spelled.digest());
    assert_ne!(deck.digest(), parsed(SMALLEST, &["optim.lr=0.00031"]).digest());
}

#[test]
fn the_commented_deck_parses_back_and_explains_every_key() {
    let deck = parsed(SMALLEST, &["run.dir=a \"b\" \\ # c"]);
    let text = deck.to_commented_toml();
    assert_eq!(parsed(&text, &[]), deck);
    for key in KEYS {
        assert!(text.contains(key.help), "{}", key.name);
    }
}

#[test]
fn every_deck_in_inputs_is_valid() {
    let mut n_decks = 0;
    for entry in std::fs::read_dir(root("inputs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml")
            && !path.ends_with("acceptance.toml")
            && !path.ends_with("acceptance_quick.toml")
        {
            Deck::load(&path, &[]).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
            n_decks += 1;
        }
    }
    assert!(n_decks >= 2, "found {n_decks}");
    let tiny = Deck::load(&root("inputs/tiny.toml"), &[]).unwrap();
    assert_eq!((tiny.model.vocab_size, tiny.train.steps, tiny.data.allow_changed), (256, 300, true));
    for (name, steps) in [("shakespeare_char", 2000), ("gpt2-124m-fineweb", 18_865)] {
        let deck = Deck::load(&root(&format!("inputs/{name}.toml")), &[]).unwrap();
        assert_eq!(deck.train.steps, steps, "{name}");
    }
    let gpt2 = Deck::load(&root("inputs/gpt2-124m.toml"), &[]).unwrap();
    assert_eq!((gpt2.model.n_layer, gpt2.model.vocab_size), (12, 50257));
}

pub(super) fn root(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The text between two marker lines.
fn region<'a>(doc: &'a str, name: &str) -> &'a str {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let start = doc.find(&begin).unwrap_or_else(|| panic!("the page lacks {begin}")) + begin.len();
    let len = doc[start..].find(&end).unwrap_or_else(|| panic!("the page lacks {end}"));
    &doc[start..start + len]
}

/// The inside of a region that is one fenced block.
fn block<'a>(doc: &'a str, name: &str) -> &'a str {
    let fenced = region(doc, name).trim().trim_end_matches("```");
    fenced.split_once('\n').map(|(_, inside)| inside).unwrap_or_default()
}

/// A page with another text in a region.
pub(super) fn with_region(page: &str, name: &str, text: &str) -> String {
    page.replace(
        &format!("<!-- begin {name} -->\n{}<!-- end {name} -->", region(page, name)),
        &format!("<!-- begin {name} -->\n{text}<!-- end {name} -->"),
    )
}

/// Holds a page against what it should be; with `UPDATE_DOCS` set, makes it that first.
pub(super) fn expect_page(name: &str, wanted: &str) {
    let path = root(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    for (i, (is, should)) in written.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(is, should, "{name} line {} (UPDATE_DOCS=1 cargo test --lib config rewrites it)", i + 1);
    }
    assert_eq!(written.len(), wanted.len());
}

/// The table of optimizers as Markdown.
fn optimizers_table() -> String {
    let mut table =
        "| `optim.kind` | keeps | bytes at rest, f32 | bf16 | bytes in a checkpoint | reads |\n".to_string();
    table += "| --- | --- | --- | --- | --- | --- |\n";
    for &kind in OptimizerKind::ALL {
        let states = kind.states(&kind.default_hyper(0.0));
        let names: Vec<String> = states.iter().map(|state| format!("`{}`", state.name())).collect();
        let of_key = |&(name, default): &(&str, f64)| {
            let key =
                TABLE.keys.iter().find(|key| key.name == format!("optim.{name}")).expect("a key of the deck");
            match key.kind {
                Kind::Flag => format!("`{name}` = {}", default != 0.0),
                _ => format!("`{name}` = {default:?}"),
            }
        };
        let keys: Vec<String> = kind.keys().iter().map(of_key).collect();
        let of_states = BYTES_PER_STATE * states.len();
        table += &format!(
            "| `{kind}` | {} | {} | {} | {} | {} |\n",
            names.join(", "),
            4 + 4 + of_states,
            2 + 4 + 2 + of_states,
            4 + of_states,
            keys.join(", ")
        );
    }
    table
}

/// `UPDATE_DOCS=1 cargo test --lib config` rewrites the generated regions.
#[test]
fn docs_deck_md_says_what_the_table_and_the_program_say() {
    let doc = std::fs::read_to_string(root("docs/deck.md")).unwrap();
    parsed(block(&doc, "smallest deck"), &[]);
    let faulty = block(&doc, "faulty deck");
    let Err(err @ Error::Deck(_)) = Deck::parse(faulty, &overrides(&["zero.stage=2"]), "faulty.toml") else {
        panic!("the faulty deck of docs/deck.md is accepted")
    };
    let generated = [
        ("keys", format!("\n{}\n", markdown_table(&TABLE))),
        ("faults", format!("```text\n{err}\n```\n")),
        ("optimizers", format!("\n{}\n", optimizers_table())),
    ];
    let wanted = generated.iter().fold(doc.clone(), |page, (name, text)| with_region(&page, name, text));
    expect_page("docs/deck.md", &wanted);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_text_panics_the_parser(text in any::<String>(), key in any::<String>(), value in any::<String>()) {
        let _ = Deck::parse(&text, &[(key, value)], "fuzz");
    }

    #[test]
    fn no_nearly_right_deck_panics_the_parser(
        lines in proptest::collection::vec((0..KEYS.len(), 0..6usize, "[ -~é\n]{0,12}"), 0..8),
        cut in 0..400usize,
    ) {
        let mut text = String::from(SMALLEST);
        let mut list = Vec::new();
        for (key, form, value) in lines {
            let (name, section, field) = (KEYS[key].name, KEYS[key].section(), KEYS[key].field());
            match form {
                0 => text.push_str(&format!("[{section}]\n{field} = {value}\n")),
                1 => text.insert_str(0, &format!("{name} = {value}\n")),
                2 => text.push_str(&format!("[[{section}]]\n{field} = [{value}]\n")),
                3 => text.insert_str(0, &format!("{name} = {{ {value} = 1 }}\n")),
                4 => text.insert_str(0, &format!("{section} = {value}\n")),
                _ => list.push((name.to_owned(), value)),
            }
        }
        let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let _ = Deck::parse(&text[cut..], &list, "fuzz");
    }

    #[test]
    fn any_override_of_any_key_is_good_or_one_fault_naming_the_key(
        key in 0..KEYS.len(), value in "\\PC{0,20}"
    ) {
        let name = KEYS[key].name;
        match Deck::parse(SMALLEST, &[(name.to_owned(), value)], "test.toml") {
            Ok(deck) => prop_assert_eq!(Deck::parse(&deck.to_toml(), &[], "again").unwrap(), deck),
            Err(Error::Deck(faults)) => prop_assert!(faults.iter().any(|f| f.key == name), "{:?}", faults),
            Err(err) => prop_assert!(false, "{err}"),
        }
    }
}
