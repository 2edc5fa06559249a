//! Training agrees with PyTorch in float64: losses, gradient norms, gradients and weights (tests/golden).

mod common;

use common::state::State;
use common::{Case, Steps};
use std::ops::Range;
use std::path::PathBuf;
use zero3::checkpoint::Kind;
use zero3::optimizers::OptimState;

const STEPS: u64 = 5;

/// How many times PyTorch's own f32-to-f64 distance ours may be.
///
/// Both programs round in f32 at every operation, but add in other orders, so ours is another draw of the
/// same noise, not the same draw. The yardstick is the largest of few draws in a small tensor; that of others
/// may well be twice as large (here up to 2.4 times), hardly ever four times. A mistake in a formula shows in
/// the third digit, thousands of times the yardstick.
const MANY_TIMES: f64 = 4.0;

/// Relative rounding of one f32 operation. Added to the yardstick, which is 0 where PyTorch was lucky: the
/// values compared are stored in f32 themselves, and go through a handful of operations (clipping, moments,
/// division) on the way out.
const ROUNDINGS: f64 = 4.0 * f32::EPSILON as f64;

/// A model of the golden file.
#[derive(Clone, Copy)]
enum Model {
    Gpt2,
    Llama,
    Qwen3,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Gpt2 => "gpt2",
            Model::Llama => "llama",
            Model::Qwen3 => "qwen3",
        }
    }

    fn golden_file(self) -> PathBuf {
        let name = if let Model::Qwen3 = self { "qwen3.h5" } else { "golden.h5" };
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
    }

    /// Its group.
    fn golden(self) -> hdf5::Group {
        let path = self.golden_file();
        let file = hdf5::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.group(self.name()).expect("the file has the group")
    }

    fn floats(self, name: &str) -> Vec<f64> {
        let read = self.golden().dataset(name).and_then(|dataset| dataset.read_raw::<f64>());
        read.unwrap_or_else(|e| panic!("{}/{name}: {e}", self.name()))
    }

    /// The golden names of a parameter of ours: several where ours is their rows one after the other.
    fn golden_names(self, ours: &str) -> Vec<String> {
        if let Model::Gpt2 = self {
            return vec![ours.into()];
        }
        let (layer, name) = match ours.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((i, name)) => (format!("layers.{i}."), name),
            None => (String::new(), ours),
        };
        let theirs: &[&str] = match name {
            "self_attn.qkv_proj.weight" if self.is_qwen3() => {
                &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
            }
            "mlp.gate_up_proj.weight" if self.is_qwen3() => &["mlp.gate_proj", "mlp.up_proj"],
            same if self.is_qwen3() => return vec![format!("{layer}{same}")],
            "embed_tokens.weight" => &["tok_embeddings"],
            "input_layernorm.weight" => &["attention_norm"],
            "self_attn.qkv_proj.weight" => &["attention.wq", "attention.wk", "attention.wv"],
            "self_attn.o_proj.weight" => &["attention.wo"],
            "post_attention_layernorm.weight" => &["ffn_norm"],
            "mlp.gate_up_proj.weight" => &["feed_forward.w1", "feed_forward.w3"],
            "mlp.down_proj.weight" => &["feed_forward.w2"],
            "norm.weight" => &["norm"],
            "lm_head.weight" => &["output"],
            other => panic!("{other} has no golden name"),
        };
        theirs.iter().map(|name| format!("{layer}{name}.weight")).collect()
    }

    fn is_qwen3(self) -> bool {
        matches!(self, Model::Qwen3)
    }

    /// A parameter of ours out of a group of golden tensors, and how far PyTorch's f32 run is from it.
    fn tensor(self, group: &str, ours: &str) -> (Vec<f64>, f64) {
        let (mut values, mut yardstick) = (Vec::new(), 0.0f64);
        for name in self.golden_names(ours) {
            let name = format!("{group}/{name}");
            let dataset = self.golden().dataset(&name).unwrap_or_else(|e| panic!("{name}: {e}"));
            let apart = dataset.attr("f32_run_max_abs_diff").and_then(|a| a.read_scalar::<f64>());
            yardstick = yardstick.max(apart.unwrap_or_else(|e| panic!("{name}: {e}")));
            values.extend(self.floats(&name));
        }
        (values, yardstick)
    }

    /// Where a run's initial weights are: of the Llama in a file of the case, under the names and rows of
    /// this program.
    fn init_from(self, case: &Case) -> String {
        if let Model::Gpt2 = self {
            return format!("{}:gpt2/init", self.golden_file().display());
        }
        let (path, init) = (case.path("init.h5"), self.golden().group("init").expect("a group"));
        let file = hdf5::File::create(&path).expect("a temporary file");
        let layer = ["input_layernorm", "self_attn.qkv_proj", "self_attn.o_proj", "post_attention_layernorm"];
        let layer = layer.into_iter().chain(["mlp.gate_up_proj", "mlp.down_proj"]);
        // The golden Qwen3 has norms of heads, and no head of its own.
        let (norms, head) = match self.is_qwen3() {
            true => (&["self_attn.q_norm", "self_attn.k_norm"][..], None),
            false => (&[][..], Some("lm_head.weight")),
        };
        let layer = layer.chain(norms.iter().copied());
        let names = layer.flat_map(|name| [0, 1].map(|i| format!("layers.{i}.{name}.weight")));
        for ours in
            names.chain(["embed_tokens.weight", "norm.weight"].into_iter().chain(head).map(String::from))
        {
            let (mut values, mut shape) = (Vec::<f32>::new(), Vec::new());
            for name in self.golden_names(&ours) {
                let dataset = init.dataset(&name).unwrap_or_else(|e| panic!("{name}: {e}"));
                values.extend(dataset.read_raw::<f32>().expect("f32"));
                shape = dataset.shape();
            }
            shape[0] = values.len() / shape[1..].iter().product::<usize>();
            let dataset = file.new_dataset::<f32>().shape(shape).create(ours.as_str()).expect("a new name");
            dataset.write_raw(&values).expect("a temporary file");
        }
        path.display().to_string()
    }

    /// What its deck has besides the sizes.
    fn keys(self) -> &'static str {
        match self {
            Model::Gpt2 => "",
            Model::Llama => {
                "family = 'llama'\nn_kv_head = 2\nd_ff = 64\nrope_theta = 10000\nnorm_eps = 1e-5\ntied = \
                 false"
            }
            Model::Qwen3 => {
                "family = 'qwen3'\nn_kv_head = 2\nhead_dim = 12\nd_ff = 64\nrope_theta = 10000\nnorm_eps = \
                 1e-6\ntied = true"
            }
        }
    }
}

/// Panics with the worst element unless all lie within the tolerance.
#[track_caller]
fn assert_close(what: &str, ours: &[f64], golden: &[f64], yardstick: f64, left_out: impl Fn(usize) -> bool) {
    assert_eq!(ours.len(), golden.len(), "elements of {what}");
    let distance = |i: usize| (ours[i] - golden[i]).abs();
    let compared = (0..ours.len()).filter(|&i| !left_out(i));
    // A NaN is farther than anything.
    let far = |i: &usize| if distance(*i).is_nan() { f64::INFINITY } else { distance(*i) };
    let worst = compared.max_by(|a, b| far(a).total_cmp(&far(b))).expect("something is compared");
    let largest = golden.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let tolerance = MANY_TIMES * yardstick + ROUNDINGS * largest;
    assert!(
        distance(worst) <= tolerance,
        "{what}[{worst}] is {:e}, golden {:e}: {:e} apart, at most {tolerance:e} allowed",
        ours[worst],
        golden[worst],
        distance(worst)
    );
}

/// The golden batches as a file of tokens: a sample is its inputs and the last target.
fn write_tokens(model: Model, case: &Case) {
    let ints = |name: &str| {
        model.golden().dataset(name).and_then(|d| d.read_raw::<i32>()).expect("int32 (5, 2, 16)")
    };
    let (tokens, targets) = (ints("tokens"), ints("targets"));
    let samples = tokens.chunks(16).zip(targets.chunks(16));
    let stream = samples.flat_map(|(x, y)| x.iter().chain(y.last()));
    let bytes: Vec<u8> = stream.flat_map(|&token| (token as u16).to_le_bytes()).collect();
    assert_eq!(bytes.len(), 2 * 5 * 2 * 17);
    std::fs::write(case.path("golden.bin"), bytes).expect("a temporary file");
}

/// What the golden run of AdamW has under `[optim]`.
const ADAMW: &str = "lr = 1e-3\nmin_lr = 1e-3\nbeta1 = 0.9\nbeta2 = 0.95\neps = 1e-8";

/// Trains the golden run; the case holds the run directory `run`.
fn train(model: Model, n_ranks: usize, micro_batch_size: usize, optim: &str) -> Case {
    let case = Case::tiny();
    write_tokens(model, &case);
    let deck = format!(
        r#"
        [run]
        threads_per_rank = 1
        [model]
        n_layer = 2
        n_head = 4
        d_model = 32
        seq_len = 16
        vocab_size = 64
        init_from = "{init_from}"
        {keys}
        [data]
        train = ["{tokens}"]
        format = "raw_u16"
        stride = 17      # samples do not overlap
        shuffle = false
        val_fraction = 0.0
        [train]
        steps = {STEPS}
        micro_batch_size = {micro_batch_size}
        global_batch_size = 2
        eval_every = 0
        [optim]
        {optim}
        warmup_steps = 0
        weight_decay = 0.1
        grad_clip = 1.0
        [checkpoint]
        every = 1
        keep_last = 0
        "#,
        init_from = model.init_from(&case),
        keys = model.keys(),
        tokens = case.path("golden.bin").display(),
    );
    std::fs::write(case.deck(), deck).expect("a temporary file");
    case.train(n_ranks, "run", &[]).output().expect_success();
    case
}

/// The middle third of `c_attn.bias`, whose gradient is noise around zero (tests/golden/README.md).
fn key_bias(param: &str, numel: usize) -> Range<usize> {
    if param.ends_with("attn.c_attn.bias") { numel / 3..2 * numel / 3 } else { 0..0 }
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

fn losses_and_norms_agree(model: Model, case: &Case) {
    let steps = Steps::read(&case.path("run"));
    assert_eq!(steps.rows.len(), STEPS as usize);
    for name in ["loss", "grad_norm"] {
        let exact = model.floats(&format!("f64/{name}"));
        let single = model.floats(&format!("f32/{name}"));
        let yardstick = exact.iter().zip(&single).fold(0.0f64, |max, (x, y)| max.max((x - y).abs()));
        assert_close(name, &steps.numbers(name), &exact, yardstick, |_| false);
    }
    assert!(steps.numbers("lr").iter().all(|&lr| lr == 1e-3), "{:?}", steps.column("lr"));
}

fn first_gradient_agrees(model: Model, case: &Case) {
    // After one step m = (1 - beta1) * clip factor * gradient.
    let norm = Steps::read(&case.path("run")).numbers("grad_norm")[0];
    let per_gradient = (1.0 - 0.9) * (1.0 / (norm + 1e-6)).min(1.0);
    let state = State::read(&case.path("run"), 1);
    for param in &state.manifest.params {
        let ours: Vec<f64> = widened(state.get(&param.name, Kind::Optim(OptimState::ExpAvg)))
            .iter()
            .map(|m| m / per_gradient)
            .collect();
        let (exact, yardstick) = model.tensor("f64/grad1", &param.name);
        assert_close(&format!("gradient of {}", param.name), &ours, &exact, yardstick, |_| false);
    }
}

fn last_weights_agree(model: Model, case: &Case) {
    let state = State::read(&case.path("run"), STEPS);
    let mut in_golden =
        model.golden().group("f64/after5").and_then(|group| group.member_names()).expect("a group");
    in_golden.sort();
    let mut in_state: Vec<_> =
        state.manifest.params.iter().flat_map(|p| model.golden_names(&p.name)).collect();
    in_state.sort();
    assert_eq!(in_state, in_golden, "parameters");
    for param in &state.manifest.params {
        let ours = widened(state.get(&param.name, Kind::Weight));
        let (exact, yardstick) = model.tensor("f64/after5", &param.name);
        let (gradient, noise) = model.tensor("f64/grad1", &param.name);
        let key_bias = key_bias(&param.name, param.numel);
        // AdamW's first update is g / (|g| + eps): of a clipped gradient near eps its rounding shows in full.
        let vanishes = |i: usize| gradient[i] != 0.0 && gradient[i].abs() < MANY_TIMES * MANY_TIMES * noise;
        let n_vanish = (0..param.numel).filter(|i| vanishes(*i) && !key_bias.contains(i)).count();
        assert!(
            50 * n_vanish <= param.numel,
            "{n_vanish} gradients of {} vanish: too few are compared",
            param.name
        );
        assert_close(&param.name, &ours, &exact, yardstick, |i| key_bias.contains(&i) || vanishes(i));
    }
}

/// One sequence per micro-batch, so that two ranks share a step and a third has nothing to do; and both in
/// one.
fn training_agrees(model: Model, n_ranks: usize) {
    for micro_batch_size in [1, 2] {
        let case = train(model, n_ranks, micro_batch_size, ADAMW);
        losses_and_norms_agree(model, &case);
        first_gradient_agrees(model, &case);
        last_weights_agree(model, &case);
    }
}

#[test]
fn one_rank_agrees_with_pytorch_in_float64() {
    training_agrees(Model::Gpt2, 1);
}

#[test]
fn two_ranks_agree_with_pytorch_in_float64() {
    training_agrees(Model::Gpt2, 2);
}

#[test]
fn three_ranks_agree_with_pytorch_in_float64() {
    training_agrees(Model::Gpt2, 3);
}

#[test]
fn a_llama_agrees_with_pytorch_in_float64() {
    training_agrees(Model::Llama, 1);
    training_agrees(Model::Llama, 3);
}

#[test]
fn a_qwen3_agrees_with_pytorch_in_float64() {
    training_agrees(Model::Qwen3, 1);
    training_agrees(Model::Qwen3, 3);
}

/// The optimizers beside AdamW (tests/golden/optimizers.py), on three ranks of which one has no micro-batch.
#[test]
fn lion_and_sgd_agree_with_pytorch_in_float64() {
    let path = Model::Gpt2.golden_file().with_file_name("optimizers.h5");
    let file = hdf5::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (group, optim) in [
        ("lion", "kind = 'lion'\nlr = 1e-3\nmin_lr = 1e-3"),
        ("sgd", "kind = 'sgd'\nlr = 0.1\nmin_lr = 0.1\nmomentum = 0.9"),
        ("nesterov", "kind = 'sgd'\nlr = 0.1\nmin_lr = 0.1\nmomentum = 0.9\nnesterov = true"),
    ] {
        let golden = |name: &str| -> (Vec<f64>, f64) {
            let dataset =
                file.dataset(&format!("{group}/{name}")).unwrap_or_else(|e| panic!("{group}/{name}: {e}"));
            let apart = dataset
                .attr("f32_run_max_abs_diff")
                .and_then(|a| a.read_scalar::<f64>())
                .expect("an attribute");
            (dataset.read_raw::<f64>().expect("numbers"), apart)
        };
        let case = train(Model::Gpt2, 3, 1, optim);
        let steps = Steps::read(&case.path("run"));
        for name in ["loss", "grad_norm"] {
            let (exact, yardstick) = golden(name);
            assert_close(&format!("{group}: {name}"), &steps.numbers(name), &exact, yardstick, |_| false);
        }
        let state = State::read(&case.path("run"), STEPS);
        let (mut n_vanish, mut n_compared) = (0, 0);
        for param in &state.manifest.params {
            let ours = widened(state.get(&param.name, Kind::Weight));
            let (exact, mut yardstick) = golden(&format!("after5/{}", param.name));
            let key_bias = key_bias(&param.name, param.numel);
            // Lion goes by a sign: where the direction of a step is as small as its rounding, it may be
            // either.
            let mut left_out = vec![false; param.numel];
            if group == "lion" {
                let (margin, noise) = golden(&format!("margin/{}", param.name));
                left_out = margin.iter().map(|&m| m < MANY_TIMES * MANY_TIMES * noise).collect();
                // PyTorch's own f32 run took another sign somewhere there: no yardstick for the others.
                yardstick = yardstick.min(f64::from(f32::EPSILON));
            }
            key_bias.clone().for_each(|i| left_out[i] = true);
            n_vanish += left_out.iter().filter(|&&out| out).count() - key_bias.len();
            n_compared += param.numel;
            assert_close(&format!("{group}: {}", param.name), &ours, &exact, yardstick, |i| left_out[i]);
        }
        assert!(
            50 * n_vanish <= n_compared,
            "{group}: {n_vanish} of {n_compared} are left out: too few are compared"
        );
    }
}
