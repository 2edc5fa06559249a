//! The hardware of `zero3 plan --hardware`: compute, memory and bandwidth of a device, as a file of strict
//! keys.
//!
//! The table is built by the same macro as the decks', so that it is read, checked and printed alike. The
//! files of common devices are built into the program. Must not know: how the figures are used.

use super::rate::MeasuredRate;
use super::resolve::Resolver;
use super::*;
use crate::error::all_faults;
use crate::work::Kernel;

pub use super::rate::Rate;

/// The figures of a device, its node and its network.
pub type Hardware = Deck;

/// Devices with built-in files: name and text. Each file cites its sources.
const BUILT_IN: [(&str, &str); 6] = [
    ("a100-40gb", include_str!("../../inputs/hardware/a100-40gb.toml")),
    ("a100-80gb", include_str!("../../inputs/hardware/a100-80gb.toml")),
    ("h100", include_str!("../../inputs/hardware/h100.toml")),
    ("h200", include_str!("../../inputs/hardware/h200.toml")),
    ("b200", include_str!("../../inputs/hardware/b200.toml")),
    ("l40s", include_str!("../../inputs/hardware/l40s.toml")),
];

/// A rate: a positive number.
const fn rate() -> Kind {
    float(1e-6, 1e9)
}
/// A fraction of the data sheet's figure.
const SHARE: Kind = float(0.01, 1.0);

deck! {
    /// Identification.
    hardware: HardwareSection {
        name: String = (required), Kind::Text { may_be_empty: false }, "Name, for reports.";
        kind: DeviceKind = (required), Kind::Choice(DeviceKind::NAMES),
            "`gpu`: collectives run concurrently with kernels and take `assumed.contention` of the device. \
             `cpu`: the ranks of a node share its cores, and collectives run on them.";
        source: String = (default ""), Kind::Text { may_be_empty: true },
            "Source of the figures, for reports.";
        measured: bool = (default "false"), Kind::Flag,
            "Measured by `zero3 plan --calibrate`; otherwise from data sheets.";
    }

    /// One device, that of a rank.
    device: DeviceSection {
        f32_tflops: f64 = (required), rate(), "Peak of f32 products, 10^12 FLOP/s.";
        tf32_tflops: f64 = (default "0"), float(0.0, 1e9),
            "Peak of f32 products with `run.tf32`, dense; 0 = that of f32.";
        bf16_tflops: f64 = (required), rate(), "Peak of bf16 products, dense, 10^12 FLOP/s.";
        memory_gb: f64 = (required), rate(), "Memory of a rank, 10^9 bytes.";
        memory_gb_per_s: f64 = (required), rate(), "Bandwidth of that memory, 10^9 bytes/s.";
    }

    /// The devices of one node and the links between them.
    node: NodeSection {
        devices: usize = (required), integer(1, 4096), "Ranks of a full node.";
        gb_per_s: f64 = (required), rate(),
            "Bandwidth from one device to the others of its node, one way, 10^9 bytes/s.";
        reduce_gb_per_s: f64 = (default "0"), float(0.0, 1e9),
            "The same with addition of the received gradients, if measured; 0 = `node.gb_per_s` and a pass \
             over memory.";
        latency_us: f64 = (required), float(0.0, 1e9),
            "Latency of a collective's first byte within a node, microseconds.";
        message_us: f64 = (default "0"), float(0.0, 1e9),
            "Additional microseconds per step of a ring, or per peer with direct transfers.";
    }

    /// The links between nodes.
    network: NetworkSection {
        gb_per_s: f64 = (required), rate(),
            "Bandwidth out of a node per device, one way, 10^9 bytes/s.";
        latency_us: f64 = (required), float(0.0, 1e9), "Latency from node to node, microseconds.";
        message_us: f64 = (default "0"), float(0.0, 1e9),
            "As `node.message_us`, for a step or a peer on another node.";
        gather: GatherRoute = (default "ring"), Kind::Choice(GatherRoute::NAMES),
            "`ring`: all-gathers enter and leave a node once. `direct`: each rank fetches each slice itself.";
    }

    /// Assumptions: the fraction of the figures above that is reached. Kernels under `[kernels]` need none.
    assumed: AssumedSection {
        products: f64 = (default "0.7"), SHARE, "Fraction of the peak reached by large matrix products.";
        attention: f64 = (default "0.4"), SHARE,
            "Fraction of the peak reached by attention, counting only the causal half.";
        memory: f64 = (default "0.8"), SHARE,
            "Fraction of the memory bandwidth reached by passes over memory.";
        links: f64 = (default "0.8"), SHARE, "Fraction of the links' bandwidth reached by large collectives.";
        launch_us: f64 = (default "4"), float(0.0, 1e9),
            "Gap between consecutive kernels, microseconds.";
        contention: f64 = (default "0.1"), float(0.0, 1.0),
            "Fraction of a device that a running collective takes from its kernels.";
    }

    /// Measured kernels: `"1.5 us, 210 GFLOP/s, 55 GB/s"` is the fixed time of a call and the cost of FLOPs
    /// and bytes; parts can be missing. Empty = derived from the figures above.
    kernels: KernelsSection {
        linear_forward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "`out = inp * weight^T`, f32.";
        linear_forward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate,
            "`out = inp * weight^T`, bf16.";
        linear_backward_input_f32: Written<MeasuredRate> = (default ""), Kind::Rate,
            "`dinp = dout * weight`, f32.";
        linear_backward_input_bf16: Written<MeasuredRate> = (default ""), Kind::Rate,
            "`dinp = dout * weight`, bf16.";
        linear_backward_weight_f32: Written<MeasuredRate> = (default ""), Kind::Rate,
            "`dweight = dout^T * inp`, f32.";
        linear_backward_weight_bf16: Written<MeasuredRate> = (default ""), Kind::Rate,
            "`dweight = dout^T * inp`, bf16.";
        attention_forward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Causal attention, f32.";
        attention_forward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Causal attention, bf16.";
        attention_backward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Its gradient, f32.";
        attention_backward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Its gradient, bf16.";
        norm_forward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "LayerNorm or RMSNorm, f32.";
        norm_forward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "LayerNorm or RMSNorm, bf16.";
        norm_backward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Their gradients, f32.";
        norm_backward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Their gradients, bf16.";
        activation_forward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "GELU or SwiGLU, f32.";
        activation_forward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "GELU or SwiGLU, bf16.";
        activation_backward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Their gradients, f32.";
        activation_backward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Their gradients, bf16.";
        cross_entropy_f32: Written<MeasuredRate> = (default ""), Kind::Rate,
            "Cross-entropy with its gradient, f32.";
        cross_entropy_bf16: Written<MeasuredRate> = (default ""), Kind::Rate,
            "Cross-entropy with its gradient, bf16.";
        rope_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Rotary positions, f32.";
        rope_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Rotary positions, bf16.";
        embedding_forward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Looking rows up, f32.";
        embedding_forward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Looking rows up, bf16.";
        embedding_backward_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Adding rows up, f32.";
        embedding_backward_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Adding rows up, bf16.";
        stream_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "Adding, copying, casting, f32.";
        stream_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "Adding, copying, casting, bf16.";
        sum_of_squares_f32: Written<MeasuredRate> = (default ""), Kind::Rate,
            "The exact sum of the gradient norm, f32.";
        sum_of_squares_bf16: Written<MeasuredRate> = (default ""), Kind::Rate,
            "The exact sum of the gradient norm, bf16.";
        adamw_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by AdamW, f32.";
        adamw_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by AdamW, bf16.";
        lion_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by Lion, f32.";
        lion_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by Lion, bf16.";
        sgd_f32: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by SGD, f32.";
        sgd_bf16: Written<MeasuredRate> = (default ""), Kind::Rate, "The update of a slice by SGD, bf16.";
    }
}

/// Whether a dotted key belongs to a section of hardware files, for overrides on the command line.
pub fn is_key(name: &str) -> bool {
    name.split_once('.').is_some_and(|(section, _)| SECTIONS.iter().any(|(known, _)| *known == section))
}

impl Deck {
    /// The file at a path, or the built-in one of that name.
    ///
    /// # Errors
    /// No such name or file; every key that is missing, unknown or out of range.
    pub fn named(name: &Path, overrides: &[(String, String)]) -> Result<Hardware> {
        let built_in = BUILT_IN.iter().find(|(known, _)| name.as_os_str().eq_ignore_ascii_case(known));
        let is_toml = name.extension().is_some_and(|ending| ending == "toml");
        let (text, origin) = match built_in {
            Some((known, text)) => ((*text).to_owned(), format!("the built-in hardware {known}")),
            None if !is_toml && !name.exists() => {
                let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
                return Err(Error::Input(format!(
                    "--hardware {}: neither a file nor one of {}; inputs/hardware/ has files to begin with",
                    name.display(),
                    known.join(", ")
                )));
            }
            None => (read_text(name, "hardware file")?, name.display().to_string()),
        };
        Deck::parse(&text, overrides, &origin)
    }

    /// Checks a file's text; `origin` identifies it.
    ///
    /// # Errors
    /// Those of [`Deck::named`].
    pub fn parse(text: &str, overrides: &[(String, String)], origin: &str) -> Result<Hardware> {
        Resolver::read(&TABLE, text, overrides, origin).and_then(Resolver::finish).map_err(
            |error| match error {
                Error::Deck(faults) => Error::Input(all_faults(origin, &faults)),
                other => other,
            },
        )
    }

    /// The measured rate of a kernel.
    pub fn measured(&self, kernel: Kernel, dtype: DType) -> Option<Rate> {
        let kernels = toml::Table::try_from(&self.kernels).expect("a section is a table");
        let rate = kernels[&rate_key(kernel, dtype)].clone().try_into::<Written<MeasuredRate>>();
        rate.expect("a section prints what it reads").0
    }

    /// Records the measured rate of a kernel.
    pub fn set_measured(&mut self, kernel: Kernel, dtype: DType, rate: Rate) {
        let mut kernels = toml::Table::try_from(&self.kernels).expect("a section is a table");
        kernels.insert(rate_key(kernel, dtype), toml::Value::String(rate.to_string()));
        self.kernels = kernels.try_into().expect("every kernel has a key");
    }

    /// Every key with its description, as a file.
    pub fn to_commented_toml(&self) -> String {
        render::toml(&TABLE, self, true)
    }
}

/// The key of a kernel in `[kernels]`.
fn rate_key(kernel: Kernel, dtype: DType) -> String {
    format!("{}_{}", kernel.name(), dtype.name())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_page, root, with_region};
    use super::*;

    #[test]
    fn built_in_files_are_whole_and_say_where_their_figures_are_from() {
        for (name, text) in BUILT_IN {
            let hardware = Deck::named(Path::new(name), &[]).unwrap();
            assert!(!hardware.hardware.source.is_empty() && text.contains("http"), "{name}");
            assert!(hardware.device.bf16_tflops > hardware.device.f32_tflops, "{name}: dense bf16");
            assert_eq!(
                Deck::parse(&hardware.to_commented_toml(), &[], "printed").unwrap(),
                hardware,
                "{name}"
            );
        }
        // Every file of the directory is one of them.
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/hardware");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), BUILT_IN.len());
    }

    /// `UPDATE_DOCS=1 cargo test --lib config` rewrites the generated region.
    #[test]
    fn docs_planning_md_has_the_table_of_keys() {
        let doc = std::fs::read_to_string(root("docs/planning.md")).unwrap();
        let wanted = with_region(&doc, "keys", &format!("\n{}\n", markdown_table(&TABLE)));
        expect_page("docs/planning.md", &wanted);
    }

    #[test]
    fn faults_name_key_value_and_what_would_do() {
        let whole = include_str!("../../inputs/hardware/h100.toml");
        for (from, to, says) in [
            (
                "bf16_tflops = ",
                "bf17_tflops = 1 #",
                "device.bf17_tflops = 1: no such key; did you mean device.bf16_tflops",
            ),
            ("gb_per_s = 450", "gb_per_s = 0", "node.gb_per_s = 0: a number from"),
            ("devices = 8", "devices = 0", "node.devices = 0: an integer from 1"),
            ("kind = \"gpu\"", "kind = \"tpu\"", "hardware.kind = \"tpu\": one of \"gpu\", \"cpu\""),
            ("[network]", "[netwrok]", "did you mean [network]"),
            (
                "[network]",
                "[kernels]\nadamw_f32 = \"fast\"\n[network]",
                "kernels.adamw_f32 = \"fast\": a combination of us",
            ),
            ("[network]", "[network", "is not TOML: line"),
        ] {
            let text = whole.replacen(from, to, 1);
            assert_ne!(text, whole, "{from}");
            let error = Deck::parse(&text, &[], "my.toml").unwrap_err();
            let said = error.to_string();
            assert!(
                said.starts_with("my.toml ") && said.contains(says) && error.exit().code() == 2,
                "{said}"
            );
        }
        let said = Deck::named(Path::new("h1000"), &[]).unwrap_err().to_string();
        assert!(said.contains("neither a file nor one of a100-40gb, a100-80gb, h100"), "{said}");
    }
}
