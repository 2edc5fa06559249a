//! The deck of `zero3 accept`: what is measured, for how long, and the limits of each metric.
//!
//! The table is built by the same macro as the training deck's, so both are read, checked and printed alike.
//! Must not know: how anything is measured.

use super::resolve::Resolver;
use super::*;
use crate::error::Fault;

/// A section of the acceptance: one benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Ranks compare programs, decks, plans and machines.
    Inventory,
    /// Matrix products and memory bandwidth of every rank.
    Device,
    /// Collectives over all ranks, within nodes and between pairs.
    Collectives,
    /// The file system of checkpoints.
    Storage,
    /// The reference run, and the same steps on subsets of the ranks.
    Training,
    /// The reference model on more and more ranks.
    Scaling,
    /// Restore on fewer ranks, stop and resume, a soak.
    Elasticity,
}

impl Section {
    /// All sections, in execution order.
    pub const ALL: [Section; 7] = [
        Section::Inventory,
        Section::Device,
        Section::Collectives,
        Section::Storage,
        Section::Training,
        Section::Scaling,
        Section::Elasticity,
    ];

    /// Name in `run.sections`, metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Section::Inventory => "inventory",
            Section::Device => "device",
            Section::Collectives => "collectives",
            Section::Storage => "storage",
            Section::Training => "training",
            Section::Scaling => "scaling",
            Section::Elasticity => "elasticity",
        }
    }

    /// Requested sections whose results must be right before this one runs.
    pub fn needs(self) -> &'static [Section] {
        match self {
            Section::Inventory => &[],
            // Measurements are meaningless if ranks run different programs or decks.
            Section::Device | Section::Collectives | Section::Storage | Section::Training => {
                &[Section::Inventory]
            }
            Section::Scaling => &[Section::Training],
            Section::Elasticity => &[Section::Training, Section::Storage],
        }
    }

    /// Starts from the reference run of `training`, and cannot be requested without it.
    fn extends_reference_run(self) -> bool {
        matches!(self, Section::Scaling | Section::Elasticity)
    }
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

deck! {
    /// The job: what runs, where it writes, how long it may take.
    run: RunSection {
        dir: String = (required), Kind::Text { may_be_empty: false },
            "Directory of the reports; on a file system shared by all ranks.";
        checkpoint_dir: String = (default ""), Kind::Text { may_be_empty: true },
            "Directory on the file system of checkpoints: `storage` measures it, and the runs of `training` \
             write here; empty = `run.dir`.";
        sections: Written<Sections> = (default "all"), Kind::Text { may_be_empty: false },
            "Sections to run: `all`, or a list out of inventory, device, collectives, storage, training, \
             scaling, elasticity, separated by commas.";
        time_limit: Written<TimeLimit> = (default "1h"), Kind::Duration,
            "No section starts after this time; a section still running at 1.5 times this time ends the job \
             with code 5.";
        backend: BackendKind = (default "auto"), Kind::Choice(BackendKind::NAMES),
            "Compute device: `auto` selects GPUs if every rank has one, and CPUs if none has.";
        threads_per_rank: usize = (default "0"), integer(0, 4096),
            "Compute threads per rank; 0 = the number of cores in the rank's cpuset.";
        peak_gflops: f64 = (default "0"), float(0.0, 1e12),
            "Peak GFLOP/s per rank, from the data sheet, the denominator of MFU; 0 = unknown, and MFU is \
             skipped.";
        log_level: String = (default "warn"), Kind::LogFilter,
            "A level, or an env_logger filter by module, for log messages.";
    }

    /// Matrix products and memory bandwidth of every rank.
    device: DeviceSection {
        seconds: f64 = (default "1"), float(0.01, 3600.0),
            "Seconds of each measurement.";
        gemm_n: usize = (default "1024"), integer(16, 1 << 16),
            "Size of the square matrices in the GEMM test.";
        memory_bytes: u64 = (default "268435456"), integer(4096, 1 << 40),
            "Bytes of each of the three arrays of the memory bandwidth test; must exceed all caches.";
        slow_rank: f64 = (default "0.15"), FRACTION,
            "A rank slower than the median rank by more than this fraction is reported, and fails.";
    }

    /// Collectives, in the terms of nccl-tests.
    collectives: CollectivesSection {
        max_bytes: u64 = (default "0"), integer(0, 1 << 33),
            "Largest message; 0 = the largest unit of the reference model. Sizes increase from 8 bytes by \
             factors of 8, ending with this one.";
        iterations: usize = (default "20"), integer(3, 1_000_000),
            "Timed calls per size.";
        warmup: usize = (default "3"), UNSIGNED,
            "Warm-up calls per size.";
        pairs: bool = (default "true"), Kind::Flag,
            "Measure each pair of nodes (of ranks, on a single node) separately, to find a bad link or node.";
        slow_link: f64 = (default "0.5"), FRACTION,
            "A link whose bandwidth is lower, or whose latency is higher, than the median link's by more \
             than this factor (0.5: half the bandwidth, twice the latency) is reported, and fails.";
    }

    /// Writes and reads in the pattern of checkpoints.
    storage: StorageSection {
        bytes_per_rank: u64 = (default "0"), integer(0, 1 << 50),
            "Bytes written and read per rank; 0 = its share of the reference model's weights and \
             moments.";
        n_files: usize = (default "64"), integer(1, 1_000_000),
            "Small files created, renamed and removed per rank, for the metadata rate.";
    }

    /// The reference model and its training on synthetic tokens.
    training: TrainingSection {
        preset: Preset = (default "none"), Kind::Choice(Preset::NAMES),
            "A published model size, instead of the size keys.";
        n_layer: usize = (default "0"), integer(0, 4096),
            "Transformer blocks (L); 0 = a model sized to the devices; requires `training.n_head` and \
             `training.d_model` to be 0, too.";
        n_head: usize = (default "0"), integer(0, 4096),
            "Attention heads; must divide `training.d_model`.";
        d_model: usize = (default "0"), integer(0, 1 << 20),
            "Width (C).";
        seq_len: usize = (default "128"), integer(1, 1 << 20),
            "Tokens per sequence (T).";
        vocab_size: usize = (default "512"), integer(2, 1 << 31),
            "Vocabulary (V).";
        micro_batch_size: usize = (default "4"), integer(1, 1 << 20),
            "Sequences per rank and micro-step.";
        global_batch_size: usize = (default "32"), integer(1, 1 << 30),
            "Sequences per step over all ranks; a multiple of `training.micro_batch_size`.";
        steps: u64 = (default "20"), integer(4, 1_000_000),
            "Steps of the reference run and of its repetitions on subsets of the ranks.";
        param_dtype: DType = (default "f32"), DTYPES,
            "Element type of gathered parameters and activations.";
        seed: u64 = (default "1"), UNSIGNED,
            "Seed of the synthetic tokens and of the initial weights.";
        known_answers: String = (default ""), Kind::Text { may_be_empty: true },
            "File of golden losses of this model; empty = those built into the program.";
        find_bad_rank: bool = (default "true"), Kind::Flag,
            "Repeat the run on halves of the ranks, and bisect where bits differ, down to the rank that \
             computes wrong results.";
    }

    /// Tokens per second on increasing numbers of ranks.
    scaling: ScalingSection {
        steps: u64 = (default "10"), integer(4, 1_000_000),
            "Steps of each run.";
    }

    /// Saving, restoring on fewer ranks, stopping, and a soak.
    elasticity: ElasticitySection {
        soak_minutes: f64 = (default "0"), float(0.0, 1e6),
            "Minutes of uninterrupted training, for goodput and stragglers; at most half of \
             `run.time_limit`; 0 = no soak.";
    }

    /// Limits of metrics: `REFERENCE -LOW% +HIGH%`. Without a reference, a value of the baseline or of theory
    /// is the reference; where there is neither, or the limit is empty, the metric is for information. A
    /// metric with a reference that its section could not measure fails.
    limits: LimitsSection {
        gemm_f32_gflops: Written<Limit> = (default "-15%"), Kind::Limit,
            "f32 GEMM of the slowest rank, GFLOP/s.";
        gemm_bf16_gflops: Written<Limit> = (default "-15%"), Kind::Limit,
            "bf16 GEMM of the slowest rank, GFLOP/s.";
        memory_gb_per_s: Written<Limit> = (default "-15%"), Kind::Limit,
            "Memory bandwidth of the slowest rank, GB/s.";
        all_gather_busbw: Written<Limit> = (default "-20%"), Kind::Limit,
            "AllGather of the largest size over all ranks, bus bandwidth in GB/s.";
        reduce_scatter_busbw: Written<Limit> = (default "-20%"), Kind::Limit,
            "The training step's ReduceScatter, bus bandwidth in GB/s.";
        library_reduce_scatter_busbw: Written<Limit> = (default ""), Kind::Limit,
            "The library's ReduceScatter, bus bandwidth in GB/s.";
        all_reduce_busbw: Written<Limit> = (default "-20%"), Kind::Limit, "AllReduce, bus bandwidth in GB/s.";
        broadcast_busbw: Written<Limit> = (default "-20%"), Kind::Limit, "Broadcast, bus bandwidth in GB/s.";
        point_to_point_busbw: Written<Limit> = (default "-20%"), Kind::Limit,
            "Messages between pairs of ranks, all pairs at once, bus bandwidth in GB/s.";
        latency_us: Written<Limit> = (default "+50%"), Kind::Limit,
            "Half a round trip of 8 bytes over the slowest link, microseconds.";
        overlap: Written<Limit> = (default ""), Kind::Limit,
            "Fraction of an AllGather hidden behind compute (theory: 1).";
        write_gb_per_s: Written<Limit> = (default "-30%"), Kind::Limit,
            "Write in the pattern of a checkpoint with fsync, all ranks together, GB/s.";
        read_gb_per_s: Written<Limit> = (default "-30%"), Kind::Limit,
            "Read of the same files by other ranks, GB/s.";
        metadata_per_s: Written<Limit> = (default ""), Kind::Limit,
            "Operations per second for creating, renaming and removing small files.";
        tokens_per_s: Written<Limit> = (default "-10%"), Kind::Limit,
            "Reference run on all ranks, tokens per second at the median step.";
        mfu: Written<Limit> = (default "-10%"), Kind::Limit,
            "Model FLOPs utilization of the reference run, relative to `run.peak_gflops`.";
        step_p99_ms: Written<Limit> = (default "+50%"), Kind::Limit,
            "99th percentile of the step time, milliseconds.";
        exposed_comm: Written<Limit> = (default ""), Kind::Limit,
            "Fraction of the step spent waiting for collectives, mean over ranks.";
        loss: Written<Limit> = (default "-0.1% +0.1%"), Kind::Limit,
            "Tolerance of the final loss around the golden one, if bits cannot be compared.";
        strong_efficiency: Written<Limit> = (default ""), Kind::Limit,
            "Strong scaling to all ranks, as a fraction of the ideal (theory: 1).";
        weak_efficiency: Written<Limit> = (default ""), Kind::Limit,
            "Weak scaling to all ranks, as a fraction of the ideal (theory: 1).";
        goodput: Written<Limit> = (default "-10%"), Kind::Limit,
            "Fraction of the soak spent in steps of median length (theory: 1).";
    }
}

/// Sizes of a reference model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferenceSize {
    /// Transformer blocks.
    pub n_layer: usize,
    /// Attention heads.
    pub n_head: usize,
    /// Width.
    pub d_model: usize,
}

impl TrainingSection {
    /// Neither a preset nor size keys specify the reference model.
    pub fn is_unsized(&self) -> bool {
        self.preset == Preset::None && self.n_layer == 0
    }
}

impl Deck {
    /// The deck with a reference model of these sizes.
    pub fn with_size(&self, ReferenceSize { n_layer, n_head, d_model }: ReferenceSize) -> Self {
        let training = TrainingSection { n_layer, n_head, d_model, ..self.training.clone() };
        Deck { training, ..self.clone() }
    }

    /// Resolves a deck's text; `origin` names it in syntax errors.
    ///
    /// # Errors
    /// As [`super::Deck::parse`].
    pub fn parse(text: &str, overrides: &[(String, String)], origin: &str) -> Result<Deck> {
        let mut resolver = Resolver::read(&TABLE, text, overrides, origin)?;
        match resolver.choice::<String>("run.sections").map(|sections| sections.parse::<Sections>()) {
            Some(Err(wants)) => resolver.refuse("run.sections", wants),
            Some(Ok(Sections(asked))) if !asked.contains(&Section::Training) => {
                if let Some(section) = asked.iter().find(|section| section.extends_reference_run()) {
                    let wants = format!("training too: {section} continues from its reference run");
                    resolver.refuse("run.sections", wants);
                }
            }
            _ => {}
        }
        let sizes = ["training.n_layer", "training.n_head", "training.d_model"];
        let is_zero = |name: &&&str| resolver.choice::<usize>(name) == Some(0);
        let is_preset =
            resolver.choice::<String>("training.preset").is_some_and(|name| name != Preset::None.name());
        if !is_preset && (1..sizes.len()).contains(&sizes.iter().filter(is_zero).count()) {
            let wants = "above 0, or 0 for all of n_layer, n_head and d_model: then the model is sized to \
                         the devices";
            let missing: Vec<&'static str> = sizes.iter().filter(is_zero).copied().collect();
            missing.into_iter().for_each(|name| resolver.refuse(name, wants.into()));
        }
        refuse_contradictions(&mut resolver);
        let deck: Deck = resolver.finish()?;
        // The reference model and its training are checked by the training deck they become; if the devices
        // decide the model's size, with a small one.
        let small = ReferenceSize { n_layer: 1, n_head: 1, d_model: 2 };
        let checked = if deck.training.is_unsized() { deck.with_size(small) } else { deck.clone() };
        let reference = checked.reference("tokens.u16", "reference", deck.training.steps);
        reference.map_err(|error| match error {
            Error::Deck(faults) => Error::Deck(faults.into_iter().map(with_keys_of_acceptance).collect()),
            other => other,
        })?;
        Ok(deck)
    }

    /// Directory for checkpoints.
    pub fn checkpoint_dir(&self) -> &str {
        if self.run.checkpoint_dir.is_empty() { &self.run.dir } else { &self.run.checkpoint_dir }
    }

    /// Whether a section is requested.
    pub fn runs(&self, section: Section) -> bool {
        self.run.sections.0.contains(&section)
    }

    /// The training deck of the reference run in `dir`, on the token file `tokens`, with a schedule of
    /// `steps` steps.
    ///
    /// # Errors
    /// The keys of `[training]` do not make a valid training deck, or the size of the model is not known yet.
    pub fn reference(&self, tokens: &str, dir: &str, steps: u64) -> Result<super::Deck> {
        let t = &self.training;
        let mut text = format!(
            "[run]\ndir = {}\nbackend = {}\nthreads_per_rank = {}\npeak_gflops = {:?}\nlocking = \
             \"off\"\n[model]\npreset = {}\ninit_seed = {}\n",
            quoted(dir),
            quoted(self.run.backend.name()),
            self.run.threads_per_rank,
            self.run.peak_gflops,
            quoted(t.preset.name()),
            t.seed
        );
        if t.preset == Preset::None {
            text += &format!(
                "n_layer = {}\nn_head = {}\nd_model = {}\nseq_len = {}\nvocab_size = {}\n",
                t.n_layer, t.n_head, t.d_model, t.seq_len, t.vocab_size
            );
        }
        text += &format!(
            "[data]\ntrain = [{}]\nseed = {}\n[train]\nsteps = {steps}\nmicro_batch_size = \
             {}\nglobal_batch_size = {}\n[optim]\nlr = 1e-3\nwarmup_steps = 5\ndecay_steps = \
             {steps}\n[zero]\nparam_dtype = \"{}\"\ndeterministic = true\n[checkpoint]\nevery = \
             0\n[log]\nevery = 0\n",
            quoted(tokens),
            t.seed,
            t.micro_batch_size,
            t.global_batch_size,
            t.param_dtype.name()
        );
        super::Deck::parse(&text, &[], "the reference run")
    }
}

/// Rejects requests that cannot be satisfied, before hours are spent on the rest.
fn refuse_contradictions(resolver: &mut Resolver) {
    let soak_minutes = resolver.choice::<f64>("elasticity.soak_minutes");
    let limit_s = resolver.choice::<Written<TimeLimit>>("run.time_limit").and_then(|limit| limit.seconds());
    if let (Some(soak_minutes), Some(limit_s)) = (soak_minutes, limit_s)
        && soak_minutes * 60.0 > limit_s / 2.0
    {
        // A soak may start just before the limit, and a section that runs half as long beyond it ends the
        // job.
        let wants = format!("at most half of run.time_limit, which is {:.1} minutes", limit_s / 60.0);
        resolver.refuse("elasticity.soak_minutes", wants);
    }
    for (limit, source) in [("limits.mfu", "run.peak_gflops"), ("limits.goodput", "elasticity.soak_minutes")]
    {
        let has_reference =
            resolver.choice::<Written<Limit>>(limit).is_some_and(|limit| limit.reference.is_some());
        if has_reference && resolver.choice::<f64>(source) == Some(0.0) {
            resolver.refuse(limit, format!("no reference while {source} = 0, which disables this figure"));
        }
    }
}

fn quoted(text: &str) -> String {
    key::render(&toml::Value::String(text.into()))
}

/// A fault of the reference run's deck, with the keys of this deck.
fn with_keys_of_acceptance(fault: Fault) -> Fault {
    let here = |text: &str| {
        ["model.", "train.", "zero."].iter().fold(text.to_string(), |t, s| t.replace(s, "training."))
    };
    Fault { key: here(&fault.key), value: fault.value, wants: here(&fault.wants) }
}

/// Sections of an acceptance: `all`, or names separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections(pub Vec<Section>);

impl std::str::FromStr for Sections {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Sections(Section::ALL.to_vec()));
        }
        let find = |name: &str| {
            Section::ALL.into_iter().find(|section| section.name() == name).ok_or_else(|| {
                let names = Section::ALL.map(Section::name).join(",");
                format!("\"all\" or some of {names}; there is no `{name}`")
            })
        };
        text.split(',').map(|name| find(name.trim())).collect::<std::result::Result<_, _>>().map(Sections)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_page, root, with_region};
    use super::*;

    fn parse(text: &str) -> Result<Deck> {
        Deck::parse(text, &[], "test.toml")
    }

    #[test]
    fn the_smallest_deck_has_every_default_and_makes_a_reference_run() {
        let deck = parse("run.dir = \"r\"").unwrap();
        assert!(Section::ALL.iter().all(|&section| deck.runs(section)));
        assert!(deck.training.is_unsized() && deck.reference("t.u16", "d", 20).is_err());
        let size = ReferenceSize { n_layer: 2, n_head: 4, d_model: 64 };
        let reference = deck.with_size(size).reference("t.u16", "d", 20).unwrap();
        assert_eq!(
            (reference.model.vocab_size, reference.train.steps, reference.checkpoint.every),
            (512, 20, 0)
        );
        assert_eq!(parse(&deck.to_toml()).unwrap(), deck, "what is printed reads back");
    }

    #[test]
    fn faults_name_the_keys_of_this_deck() {
        for (line, says) in [
            (
                "training.n_layer = 2\ntraining.n_head = 3\ntraining.d_model = 64",
                "training.n_head = 3: a divisor of training.d_model",
            ),
            (
                "training.n_layer = 2",
                "training.d_model = 0: above 0, or 0 for all of n_layer, n_head and d_model",
            ),
            ("training.global_batch_size = 33", "a multiple of training.micro_batch_size"),
            ("run.sections = \"device,training,stroage\"", "there is no `stroage`"),
            ("run.sections = \"device,scaling\"", "training too: scaling continues from its reference run"),
            ("limits.mfu = \"0.4\"", "a reference and tolerances"),
            ("limits.mfo = \"0.4 -1%\"", "did you mean limits.mfu"),
            ("limits.mfu = \"0.4 -1%\"", "limits.mfu = \"0.4 -1%\": no reference while run.peak_gflops = 0"),
            (
                "limits.goodput = \"0.9 -1%\"",
                "limits.goodput = \"0.9 -1%\": no reference while elasticity.soak_minutes = 0",
            ),
            ("elasticity.soak_minutes = 31", ": at most half of run.time_limit, which is 60.0 minutes"),
            ("train.steps = 3", "did you mean"),
        ] {
            let said = parse(&format!("run.dir = \"r\"\n{line}")).unwrap_err().to_string();
            assert!(said.contains(says), "{line}: {said}");
        }
    }

    /// `UPDATE_DOCS=1 cargo test --lib config` rewrites the generated region.
    #[test]
    fn docs_acceptance_md_has_the_table_of_keys() {
        let doc = std::fs::read_to_string(root("docs/acceptance.md")).unwrap();
        let wanted = with_region(&doc, "keys", &format!("\n{}\n", markdown_table(&TABLE)));
        expect_page("docs/acceptance.md", &wanted);
    }

    #[test]
    fn the_decks_of_inputs_are_valid() {
        for name in ["acceptance.toml", "acceptance_quick.toml"] {
            Deck::load(&root("inputs").join(name), &[]).unwrap_or_else(|err| panic!("{name}: {err}"));
        }
    }
}
