//! Bytes for an exact parameter count by the published formulas, without padding: at rest for every stage
//! (arXiv:1910.02054, figure 1), and communicated in a step.

use crate::human;
use crate::plan::Knobs;
use crate::plan::placement::bytes_per_param;
use serde::Serialize;
use std::fmt;

/// The results of the formulas.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Formula {
    /// Parameters (Psi).
    pub n_params: u64,
    /// Ranks (N).
    pub world_size: usize,
    /// Bytes of a rank at rest for stages 0 to 3: `whole * Psi + cut * Psi / N`.
    pub at_rest_bytes: [f64; 4],
    /// `(whole, cut)` of each stage.
    pub bytes_per_param: [(usize, usize); 4],
    /// Bytes a rank receives in a step of the deck's stage, in units of `(N - 1) / N` of all parameters.
    pub moved_bytes: f64,
    /// Number of full all-gathers and reductions included.
    pub gathers_and_reductions: (usize, usize),
}

impl Formula {
    /// For `n_params` on `world_size` ranks; a step has `all_gathers` and `reductions` of all parameters.
    pub fn new(
        n_params: u64,
        world_size: usize,
        knobs: &Knobs,
        all_gathers: usize,
        reductions: usize,
    ) -> Self {
        let (psi, n) = (n_params as f64, world_size as f64);
        let per_param = [0, 1, 2, 3].map(|stage| bytes_per_param(&Knobs { stage, ..*knobs }));
        let gathered = if knobs.stage == 0 { knobs.grad_dtype } else { knobs.param_dtype };
        let moved = all_gathers * gathered.bytes() + reductions * knobs.reduce_dtype.bytes();
        Formula {
            n_params,
            world_size,
            at_rest_bytes: per_param.map(|(whole, cut)| whole as f64 * psi + cut as f64 * psi / n),
            bytes_per_param: per_param,
            moved_bytes: moved as f64 * psi * (n - 1.0) / n,
            gathers_and_reductions: (all_gathers, reductions),
        }
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Formula { n_params, world_size, .. } = *self;
        let ranks = human::counted(world_size, "rank");
        writeln!(f, "by formula, for exactly {n_params} parameters on {ranks} (1 GB = 10^9 bytes)")?;
        for (stage, (bytes, &per_param)) in self.at_rest_bytes.iter().zip(&self.bytes_per_param).enumerate() {
            let terms = human::stage_formula(per_param, n_params, world_size as u64);
            writeln!(f, "  stage {stage} at rest {:>12.1} GB  {terms}", bytes / 1e9)?;
        }
        let (gathers, reductions) = self.gathers_and_reductions;
        write!(
            f,
            "  moved in a step {:>11.1} GB  received by a rank: {} and {}, (N-1)/N of each",
            self.moved_bytes / 1e9,
            human::counted(gathers, "all-gather"),
            human::counted(reductions, "reduction")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType::Bf16;

    #[test]
    fn the_papers_row_comes_out() {
        let knobs = Knobs { param_dtype: Bf16, grad_dtype: Bf16, reduce_dtype: Bf16, ..Knobs::default() };
        let formula = Formula::new(7_500_000_000, 64, &knobs, 2, 1);
        let shown = formula.at_rest_bytes.map(|bytes| format!("{:.1}", bytes / 1e9));
        assert_eq!(shown, ["120.0", "31.4", "16.6", "1.9"]);
        assert_eq!(formula.moved_bytes, 3.0 * 2.0 * 7.5e9 * 63.0 / 64.0);
    }
}
